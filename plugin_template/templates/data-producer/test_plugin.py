"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import CycleState, InferenceRequest, PluginContext
from endpick.testing import make_pool, make_request
from endpick.testing.strategies import requests
from hypothesis import given

from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}
from {{ cookiecutter.__package }}.producer import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def estimate(request: InferenceRequest, bytes_per_token: float) -> int | None:
    parameters = {{ cookiecutter.__parameters }}(bytes_per_token=bytes_per_token)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    state = CycleState()
    plugin.produce(request, make_pool(1).view(), state)
    return state.get({{ cookiecutter.__key }})


def test_tokens_are_rounded_up() -> None:
    assert estimate(make_request("nine byte"), bytes_per_token=4.0) == 3
    assert estimate(make_request(()), bytes_per_token=4.0) == 0


@given(requests())
def test_fewer_bytes_per_token_never_give_fewer_tokens(request: InferenceRequest) -> None:
    few, many = estimate(request, 4.0), estimate(request, 2.0)

    assert few is not None
    assert many is not None
    assert few <= many
