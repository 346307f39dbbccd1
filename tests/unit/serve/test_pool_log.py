"""The log of the pool: every change is told and counted, and however much changes, in few lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Endpoint
from endpick.data.table import EndpointTable
from endpick.serve import pool_log
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.pool_log import LINES_AT_ONCE, SHOWN_NAMES, SUMMARY_SECONDS, PoolLog


class Stage:
    """A table, and what is told of it."""

    def __init__(self, caplog) -> None:
        caplog.set_level(logging.INFO, "endpick.pool")
        self.now = 100.0
        self.registry = CollectorRegistry()
        self.table = EndpointTable(lambda: self.now, max_endpoints=50)
        self.log = PoolLog(self.table, EndpickMetrics(self.registry), lambda: self.now)
        self._caplog = caplog

    def becomes(self, *names: str, host: str = "10.0.0.1") -> None:
        self.table.replace_all(Endpoint(name, host, 8000) for name in names)

    def told(self) -> list[dict[str, object]]:
        kinds = ("joined", "left", "changed", "endpoints")
        records = [record for record in self._caplog.records if record.getMessage() == "the pool has changed"]
        return [{kind: vars(record)[kind] for kind in kinds if kind in vars(record)} for record in records]

    def counted(self, change: str) -> float | None:
        return self.registry.get_sample_value("endpick_pool_changes_total", {"change": change})


@pytest.fixture
def stage(caplog) -> Stage:
    return Stage(caplog)


def test_who_joined_left_or_changed_is_told_and_counted(stage):
    stage.becomes("a", "b")
    stage.becomes("b", "c")
    stage.becomes("b", "c", host="10.0.0.2")
    stage.becomes("b", "c", host="10.0.0.2")
    assert stage.told() == [
        {"joined": "a, b", "endpoints": 2},
        {"joined": "c", "left": "a", "endpoints": 2},
        {"changed": "b, c", "endpoints": 2},
    ]
    assert [stage.counted(change) for change in ("joined", "left", "changed")] == [3, 1, 2]


def test_of_many_some_are_named(stage):
    names = [f"e{number:02}" for number in range(50)]
    stage.becomes(*names)
    shown = ", ".join(names[:SHOWN_NAMES])
    assert stage.told() == [{"joined": f"{shown} and {50 - SHOWN_NAMES} more", "endpoints": 50}]


class Timers:
    """Stands in for the event loop."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, act: Callable[[], None]) -> Timers:
        self.set.append((seconds, act))
        return self

    def cancel(self) -> None:
        """Of a timer."""


@pytest.fixture
def timers(monkeypatch) -> Timers:
    timers = Timers()
    # For this module alone: an event loop in another thread of the tests asks for itself in the same way.
    monkeypatch.setattr(pool_log, "asyncio", SimpleNamespace(get_running_loop=lambda: timers))
    return timers


def test_changes_that_do_not_end_are_told_together(stage, timers):
    for number in range(LINES_AT_ONCE):
        stage.becomes(f"e{number}")
    stage.now += 1.0
    assert (len(stage.told()), timers.set) == (LINES_AT_ONCE, [])
    for number in range(LINES_AT_ONCE, 5000):
        stage.becomes(f"e{number}")
    assert len(stage.told()) == LINES_AT_ONCE
    [(seconds, tell)] = timers.set
    assert seconds == SUMMARY_SECONDS - 1.0
    tell()
    last = stage.told()[-1]
    assert last["endpoints"] == 1
    assert last["joined"].endswith(f" and {5000 - LINES_AT_ONCE - SHOWN_NAMES} more")
    assert stage.counted("joined") == 5000
    stage.now += SUMMARY_SECONDS
    stage.becomes("later")
    assert stage.told()[-1] == {"joined": "later", "left": "e4999", "endpoints": 1}


def test_what_waits_to_be_told_is_told_at_the_end(stage, timers):
    for number in range(LINES_AT_ONCE + 1):
        stage.becomes(f"e{number}")
    stage.log.stop()
    assert stage.told()[-1]["joined"] == f"e{LINES_AT_ONCE}"


def test_endpoints_that_are_left_out_are_counted_and_told_once_in_a_while(stage, caplog):
    for _ in range(3):
        stage.becomes(*map(str, range(51)))
    assert stage.registry.get_sample_value("endpick_pool_left_out_total") == 3
    told = [record for record in caplog.records if "--max-endpoints" in record.getMessage()]
    assert [(record.levelname, record.endpoints) for record in told] == [("WARNING", 50)]
    stage.now += 31.0
    stage.becomes(*map(str, range(51)))
    assert caplog.records[-1].suppressed == 2
