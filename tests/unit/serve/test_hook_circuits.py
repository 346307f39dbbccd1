"""What hook objects throw, as it is counted."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from endpick.host.breaker import BreakerSettings
from endpick.serve.hook_circuits import HookCircuits
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import MOST_REASONS


class Throwing:
    """A hook object's call that throws an exception of another class each time."""

    reference = SimpleNamespace(type="watching")
    candidate = SimpleNamespace(origin="acme 1.0")
    calls = 0

    def __call__(self, **_offered):
        self.calls += 1
        raise type(f"Error{self.calls}", (Exception,), {})

    def failure_message(self, _error):
        return "it failed"


def test_classes_that_are_made_anew_for_each_exception_are_counted_together_in_the_end():
    call, registry = Throwing(), CollectorRegistry()
    settings = BreakerSettings(faults=1_000_000)
    circuits = HookCircuits(SimpleNamespace(calls=lambda _hook: [call]), settings, EndpickMetrics(registry), lambda: 0.0)

    for _ in range(MOST_REASONS + 50):
        circuits.decision({})

    counted = [each for family in registry.collect() for each in family.samples if each.name == "endpick_hook_faults_total"]
    assert len(counted) == MOST_REASONS + 1
    assert {each.labels["reason"]: each.value for each in counted}["other"] == 50.0
