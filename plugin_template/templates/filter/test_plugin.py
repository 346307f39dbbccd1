"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import WAITING_QUEUE_SIZE, BoolArray, Endpoints, PluginContext, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import endpoints
from hypothesis import given

from {{ cookiecutter.__package }}.filter import (
    {{ cookiecutter.__class }},
    {{ cookiecutter.__parameters }},
)


def kept(candidates: Endpoints, limit: int) -> BoolArray:
    parameters = {{ cookiecutter.__parameters }}(limit=limit)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    return plugin.filter(make_request(), candidates, ScoringState())


def test_endpoints_with_long_queues_are_dropped(make_endpoints: MakeEndpoints) -> None:
    candidates = make_endpoints({WAITING_QUEUE_SIZE: [0, 16, 17, None]})

    assert kept(candidates, limit=16).tolist() == [True, True, False, True]


@given(endpoints(WAITING_QUEUE_SIZE))
def test_greater_limit_keeps_what_a_smaller_one_keeps(candidates: Endpoints) -> None:
    assert (kept(candidates, limit=8) >= kept(candidates, limit=4)).all()
