"""The thread that watches the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Parameters, PluginContext, Scorer
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.watchdog import Watchdog, WatchdogSettings, blocking_code


class Clock:
    """Advances by 10 ms at each look of the loop's thread."""

    def __init__(self) -> None:
        self.now = 0.0
        self.thread = threading.get_ident()

    def __call__(self) -> float:
        if threading.get_ident() == self.thread:
            self.now += 0.01
        return self.now


class LongWait(threading.Event):
    """Takes a second of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now += 1.0
        return super().wait(timeout)


class Sleepy(Scorer):
    """Blocks in `score` until it may go on."""

    may_go_on: LongWait

    def score(self, *_arguments):
        assert self.may_go_on.wait(20)


class Heard(logging.Handler):
    """Releases the plugin once the watchdog has logged its stack."""

    def __init__(self, plugin: Sleepy) -> None:
        super().__init__()
        self.plugin = plugin
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.plugin.may_go_on.set()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sleepy(clock):
    plugin = Sleepy("dozer", Parameters(), PluginContext())
    plugin.may_go_on = LongWait(clock)
    return plugin


@pytest.fixture
def heard(sleepy):
    handler = Heard(sleepy)
    logger = logging.getLogger("endpick.watchdog")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def value(metrics: EndpickMetrics, name: str) -> float:
    return metrics.registry.get_sample_value(name)


@pytest.mark.asyncio
async def test_a_blocking_plugin_is_logged_with_its_stack(sleepy, heard, clock):
    metrics, ready, is_ready_again = EndpickMetrics(CollectorRegistry()), [], asyncio.Event()

    def set_stalled(reason: str | None) -> None:
        ready.append(reason)
        if reason is None:
            is_ready_again.set()

    watchdog = Watchdog(WatchdogSettings(0.05, 0.05), metrics, set_stalled, clock)
    watchdog.start()
    try:
        sleepy.score()
        during = list(heard.messages)
        async with asyncio.timeout(20):
            await is_ready_again.wait()
    finally:
        watchdog.stop()

    assert len(during) == 1
    assert "the event loop has stood still for 1.0 s" in during[0]
    assert f"plugin 'dozer' ({Sleepy.__module__}.Sleepy) runs" in during[0]
    assert "in score\n    assert self.may_go_on.wait(20)" in during[0]
    assert [text.partition(" (")[0] for text in heard.messages[1:]] == ["the event loop stood still for 1.0 s: plugin 'dozer'"]
    assert value(metrics, "endpick_loop_stalls_total") == 1
    assert value(metrics, "endpick_loop_stalled_seconds_total") == pytest.approx(1.01)
    assert ready == ["the event loop stood still for 1.0 s", None]


@pytest.mark.asyncio
async def test_a_running_loop_is_left_alone(heard):
    metrics, ready = EndpickMetrics(CollectorRegistry()), []
    watchdog = Watchdog(WatchdogSettings(30.0, 60.0), metrics, ready.append)
    watchdog.start()
    await asyncio.sleep(0)
    watchdog.stop()

    assert "endpick-watchdog" not in {thread.name for thread in threading.enumerate()}
    assert (heard.messages, ready, value(metrics, "endpick_loop_stalls_total")) == ([], [], 0.0)


def test_blocking_code_outside_plugins_is_named_by_its_function():
    assert blocking_code(sys._getframe()).startswith("test_blocking_code_outside_plugins_is_named_by_its_function in ")
