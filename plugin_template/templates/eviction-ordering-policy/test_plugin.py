"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import Endpoint, PluginContext
from endpick.api.flow_control import DispatchedRequest
from endpick.testing import make_request

from {{ cookiecutter.__package }}.policy import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def evicted(*, newest_first: bool) -> list[tuple[int, float]]:
    """Priority and time of each request, in order of eviction."""
    parameters = {{ cookiecutter.__parameters }}(newest_first=newest_first)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    endpoint = Endpoint("e0", "192.0.2.1", 8000)
    requests = ((-1, 1), (-1, 2), (-2, 0))
    sent = [DispatchedRequest(make_request(priority=priority), endpoint, at) for priority, at in requests]
    return [(each.request.priority, each.dispatched_at) for each in sorted(sent, key=plugin.sort_key)]


def test_lowest_priority_and_newest_request_go_first() -> None:
    assert evicted(newest_first=True) == [(-2, 0), (-1, 2), (-1, 1)]


def test_oldest_request_goes_first_if_configured() -> None:
    assert evicted(newest_first=False) == [(-2, 0), (-1, 1), (-1, 2)]
