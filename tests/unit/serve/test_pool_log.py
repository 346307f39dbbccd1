"""The log of the pool."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Endpoint
from endpick.data.table import EndpointTable
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.pool_metrics import SHOWN_NAMES, PoolLog


class Stage:
    """A table and its log."""

    def __init__(self, caplog) -> None:
        caplog.set_level(logging.INFO, "endpick.pool")
        self.now = 100.0
        self.registry = CollectorRegistry()
        self.table = EndpointTable(lambda: self.now, max_endpoints=50)
        PoolLog(self.table, EndpickMetrics(self.registry), lambda: self.now)
        self._caplog = caplog

    def becomes(self, *names: str, host: str = "10.0.0.1") -> None:
        self.table.replace_all(Endpoint(name, host, 8000) for name in names)

    def logged(self) -> list[dict[str, object]]:
        kinds = ("joined", "left", "changed", "endpoints")
        records = [record for record in self._caplog.records if record.getMessage() == "the pool has changed"]
        return [{kind: vars(record)[kind] for kind in kinds if kind in vars(record)} for record in records]

    def counted(self, change: str) -> float | None:
        return self.registry.get_sample_value("endpick_pool_changes_total", {"change": change})


@pytest.fixture
def stage(caplog) -> Stage:
    return Stage(caplog)


def test_changes_are_logged_and_counted(stage):
    stage.becomes("a", "b")
    stage.becomes("b", "c")
    stage.becomes("b", "c", host="10.0.0.2")
    stage.becomes("b", "c", host="10.0.0.2")
    assert stage.logged() == [
        {"joined": "a, b", "endpoints": 2},
        {"joined": "c", "left": "a", "endpoints": 2},
        {"changed": "b, c", "endpoints": 2},
    ]
    assert [stage.counted(change) for change in ("joined", "left", "changed")] == [3, 1, 2]


def test_at_most_ten_names_are_logged(stage):
    names = [f"e{number:02}" for number in range(50)]
    stage.becomes(*names)
    shown = ", ".join(names[:SHOWN_NAMES])
    assert stage.logged() == [{"joined": f"{shown} and {50 - SHOWN_NAMES} more", "endpoints": 50}]


def test_left_out_endpoints_are_counted_and_logged_at_intervals(stage, caplog):
    for _ in range(3):
        stage.becomes(*map(str, range(51)))
    assert stage.registry.get_sample_value("endpick_pool_left_out_total") == 3
    logged = [record for record in caplog.records if "--max-endpoints" in record.getMessage()]
    assert [(record.levelname, record.endpoints) for record in logged] == [("WARNING", 50)]
    stage.now += 31.0
    stage.becomes(*map(str, range(51)))
    assert caplog.records[-1].suppressed == 2
