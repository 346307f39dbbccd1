"""The committed conversations are still how this Envoy talks; with ENDPICK_RECORD=1 they are recorded anew."""

from __future__ import annotations

import os

import pytest

from integration.envoy.client import read, send
from integration.envoy.recordings import SCENARIOS, load, save, shape


@pytest.mark.parametrize("name", SCENARIOS)
def test_envoy_still_talks_as_it_was_recorded(gateway, name):
    scenario = SCENARIOS[name]
    headers = {"x-test-id": name, **scenario.headers}
    read(send(gateway.envoy.ports[scenario.dialect], scenario.path, headers, scenario.body, scenario.trailers))
    conversation = gateway.picker.conversation_of(name)
    if os.environ.get("ENDPICK_RECORD"):
        save(name, conversation)
    assert shape(conversation) == shape(load(name))
