"""Parts for tests of the data layer: virtual time, instances of hand-made plugins, and instruments that remember."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from endpick.api import Parameters, Plugin, PluginContext, Subscriptions
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import default_on_fault, kinds_of
from endpick.host.telemetry import NullTelemetry
from unit.data.collecting import SEEN, Keep


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: whenever nothing is ready, its clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.now


class _Impatient(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("the test waits for something that will never happen")
        self._loop.now += timeout
        return super().select(0)


@pytest.fixture
def run_virtual() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine to its end in virtual time, and hold it to leaving no task behind."""

    def run(test: Coroutine[Any, Any, Any]) -> Any:
        async def whole() -> Any:
            result = await test
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert left == []
            return result

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(whole())

    return run


@dataclass
class Recorder(NullTelemetry):
    """Instruments that remember what went wrong."""

    polls: list[tuple[str, str, str]] = field(default_factory=list)
    collects: list[tuple[str, str, str, str]] = field(default_factory=list)
    faults: list[tuple[str, str, str]] = field(default_factory=list)

    def poll_error(self, source, endpoint, problem):
        self.polls.append((source.name, endpoint, str(problem)))

    def collect_error(self, source, collector, endpoint, problem):
        self.collects.append((source.name, collector.name, endpoint, str(problem)))

    def fault(self, instance, extension_point, problem):
        self.faults.append((instance.name, extension_point, str(problem)))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def _instance(plugin_class: type[Plugin[Parameters]], name: str, produces: tuple[Any, ...] = ()) -> Instance:
    subscriptions = Subscriptions(produces=produces)
    kinds = kinds_of(plugin_class)
    plugin = plugin_class(name, Parameters(), PluginContext())
    return Instance(
        name, f"test.{name}", "tests", "1.0", kinds, plugin, subscriptions, default_on_fault(kinds), scope_of(name, subscriptions)
    )


@pytest.fixture
def make_instance() -> Callable[..., Instance]:
    """`make_instance(plugin_class, name, produces=())`: build a plugin the way the host does."""
    return _instance


@pytest.fixture
def keep(make_instance):
    return make_instance(Keep, "keep", (SEEN,))
