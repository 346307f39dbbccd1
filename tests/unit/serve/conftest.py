"""A recorder with a registry and a clock of its own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import Recorder


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def recorder(registry: CollectorRegistry, clock: Clock) -> Recorder:
    return Recorder(EndpickMetrics(registry), clock, log_interval_seconds=30)
