"""The thread that watches the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Parameters, PluginContext, Scorer
from endpick.observability.metrics import EndpickMetrics
from endpick.serve.watchdog import Watchdog, WatchdogSettings, holder_of


class Sleepy(Scorer):
    """Blocks in `score` until it may go on."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.may_go_on = threading.Event()

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
def sleepy():
    return Sleepy("dozer", Parameters(), PluginContext())


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
async def test_a_plugin_that_holds_the_loop_is_named_with_its_stack_while_it_does(sleepy, heard):
    metrics, ready = EndpickMetrics(CollectorRegistry()), []
    watchdog = Watchdog(WatchdogSettings(0.05, 0.05), metrics, ready.append)
    watchdog.start()
    try:
        sleepy.score()
        during = list(heard.said)
        async with asyncio.timeout(20):
            while len(ready) < 2:  # noqa: ASYNC110 - the watchdog reports to a plain function
                await asyncio.sleep(0.01)
    finally:
        watchdog.stop()

    assert "the event loop has stood still for" in during[0]
    assert f"plugin 'dozer' ({Sleepy.__module__}.Sleepy) runs" in during[0]
    assert "in score\n    assert self.may_go_on.wait(20)" in during[0]
    assert "plugin 'dozer'" in heard.said[1]
    assert value(metrics, "endpick_loop_stalls_total") >= 1
    assert value(metrics, "endpick_loop_stalled_seconds_total") >= 0.05
    assert ready[0].startswith("the event loop stood still for")
    assert ready[-1] is None


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
