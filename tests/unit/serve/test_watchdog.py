"""The thread that watches the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Parameters, PluginContext, Scorer
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.watchdog import Watchdog, WatchdogSettings, holder_of


class Clock:
    """A hundredth of a second passes with each look of the loop's thread: what else the machine does is no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.thread = threading.get_ident()

    def __call__(self) -> float:
        if threading.get_ident() == self.thread:
            self.now += 0.01
        return self.now


class LongWait(threading.Event):
    """A second passes while it is waited for."""

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
    """Lets the plugin go on once the watchdog has said what it does."""

    def __init__(self, plugin: Sleepy) -> None:
        super().__init__()
        self.plugin = plugin
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
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
async def test_a_plugin_that_holds_the_loop_is_named_with_its_stack_while_it_does(sleepy, heard, clock):
    metrics, ready, is_ready_again = EndpickMetrics(CollectorRegistry()), [], asyncio.Event()

    def set_stalled(reason: str | None) -> None:
        ready.append(reason)
        if reason is None:
            is_ready_again.set()

    watchdog = Watchdog(WatchdogSettings(0.05, 0.05), metrics, set_stalled, clock)
    watchdog.start()
    try:
        sleepy.score()
        during = list(heard.said)
        async with asyncio.timeout(20):
            await is_ready_again.wait()
    finally:
        watchdog.stop()

    assert len(during) == 1
    assert "the event loop has stood still for 1.0 s" in during[0]
    assert f"plugin 'dozer' ({Sleepy.__module__}.Sleepy) runs" in during[0]
    assert "in score\n    assert self.may_go_on.wait(20)" in during[0]
    assert [text.partition(" (")[0] for text in heard.said[1:]] == ["the event loop stood still for 1.0 s: plugin 'dozer'"]
    assert value(metrics, "endpick_loop_stalls_total") == 1
    assert value(metrics, "endpick_loop_stalled_seconds_total") == pytest.approx(1.01)
    assert ready == ["the event loop stood still for 1.0 s", None]


@pytest.mark.asyncio
async def test_a_loop_that_turns_is_left_alone_and_the_thread_ends(heard):
    metrics, ready = EndpickMetrics(CollectorRegistry()), []
    watchdog = Watchdog(WatchdogSettings(30.0, 60.0), metrics, ready.append)
    watchdog.start()
    await asyncio.sleep(0)
    watchdog.stop()

    assert "endpick-watchdog" not in {thread.name for thread in threading.enumerate()}
    assert (heard.said, ready, value(metrics, "endpick_loop_stalls_total")) == ([], [], 0.0)


def test_what_holds_the_loop_without_a_plugin_is_named_by_its_function():
    assert holder_of(sys._getframe()).startswith("test_what_holds_the_loop_without_a_plugin_is_named_by_its_function in ")


class Answerless:
    """Says nothing of itself."""

    @property
    def __class__(self):
        raise SystemExit


class Nameless(Scorer):
    """Has a name that raises."""

    name = property(lambda _self: 1 / 0, lambda _self, _name: None)


@pytest.mark.asyncio
@pytest.mark.parametrize("made", [Answerless, lambda: Nameless("x", Parameters(), PluginContext())], ids=["answerless", "nameless"])
async def test_a_stall_is_told_whatever_is_at_hand_where_the_loop_is_held(sleepy, heard, clock, made, tmp_path):
    os.mkfifo(tmp_path / "pipe")

    class Loader:
        def get_source(self, _name):
            raise SystemExit

    known = {"wait": sleepy.may_go_on.wait, "__name__": "odd", "__loader__": Loader()}
    exec(compile("def hold(self):\n    assert wait(20)", str(tmp_path / "pipe"), "exec"), known)
    watchdog = Watchdog(WatchdogSettings(0.05, 10.0), EndpickMetrics(CollectorRegistry()), lambda _reason: None, clock)
    watchdog.start()
    try:
        known["hold"](made())
        during = list(heard.said)
        assert "endpick-watchdog" in {thread.name for thread in threading.enumerate()}
    finally:
        watchdog.stop()
    assert len(during) == 1
    assert "in hold" in during[0]
