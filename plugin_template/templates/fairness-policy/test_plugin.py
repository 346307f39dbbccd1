"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import PluginContext
from endpick.testing import FakeBand, make_waiting

from {{ cookiecutter.__package }}.policy import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def served(now: float, patience: float) -> list[str]:
    """The flows in the order of service, for a flood followed by a single request."""
    parameters = {{ cookiecutter.__parameters }}(patience_seconds=patience)
    band = FakeBand({{ cookiecutter.__class }}("it", parameters, PluginContext(clock=lambda: now)))
    for arrival, flow in enumerate(("flood", "flood", "flood", "flood", "single")):
        band.add(make_waiting(flow, arrival=arrival, enqueued_at=float(arrival)))
    order = []
    while (waiting := band.serve()) is not None:
        order.append(waiting.request.fairness_id)
    return order


def test_small_flows_go_first() -> None:
    assert served(now=5.0, patience=10.0) == ["single", "flood", "flood", "flood", "flood"]


def test_late_request_goes_before_small_flows() -> None:
    assert served(now=11.5, patience=10.0) == ["flood", "flood", "single", "flood", "flood"]
