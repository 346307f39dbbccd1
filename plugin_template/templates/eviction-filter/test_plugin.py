"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

import pytest
from endpick.api import Endpoint, PluginContext
from endpick.api.flow_control import DispatchedRequest
from endpick.testing import make_request

from {{ cookiecutter.__package }}.filter import (
    {{ cookiecutter.__class }},
    {{ cookiecutter.__parameters }},
)


@pytest.mark.parametrize(
    ("priority", "streaming", "evictable"),
    [(-2, False, True), (-1, False, False), (-2, True, False)],
)
def test_low_priorities_that_do_not_stream_may_be_evicted(priority: int, *, streaming: bool, evictable: bool) -> None:
    parameters = {{ cookiecutter.__parameters }}(below=-1)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    request = make_request(priority=priority, streaming=streaming)

    assert plugin.is_evictable(DispatchedRequest(request, Endpoint("e0", "192.0.2.1", 8000), 0.0)) is evictable
