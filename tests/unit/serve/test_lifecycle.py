"""Instances start in order and stop in reverse order."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import ConfigurationError, Parameters, PluginContext, Subscriptions
from endpick.api.plugin import Plugin
from endpick.engine.instances import StartRefused, start_instances, stop_instances
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import OnFault


class Recording(Plugin):
    """Records its calls."""

    def __init__(self, name: str, log: list[str], *, start: BaseException | None = None, stop: BaseException | None = None) -> None:
        super().__init__(name, Parameters(), PluginContext())
        self.log, self.start_problem, self.stop_problem = log, start, stop

    async def start(self) -> None:
        self.log.append(f"start {self.name}")
        if self.start_problem is not None:
            raise self.start_problem

    async def stop(self) -> None:
        self.log.append(f"stop {self.name}")
        if self.stop_problem is not None:
            raise self.stop_problem


class Hanging(Recording):
    async def start(self) -> None:
        await asyncio.Event().wait()

    stop = start


def instance(plugin: Recording) -> Instance:
    nothing = Subscriptions()
    return Instance(plugin.name, "recording", "acme", "1.0", (), plugin, nothing, OnFault.SKIP, scope_of(plugin.name, nothing))


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.mark.asyncio
async def test_start_in_order_and_stop_in_reverse(log):
    instances = [instance(Recording(name, log)) for name in "abc"]

    await start_instances(instances)
    await stop_instances(instances)

    assert log == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


@pytest.mark.asyncio
async def test_started_instances_are_stopped_after_a_failure(log):
    broken = Recording("b", log, start=RuntimeError("no disk"))

    with pytest.raises(StartRefused, match="'b' failed to start: RuntimeError: no disk"):
        await start_instances([instance(Recording("a", log)), instance(broken), instance(Recording("c", log))])

    assert log == ["start a", "start b", "stop a"]


@pytest.mark.asyncio
async def test_configuration_error_is_shown_in_the_plugins_words(log):
    broken = Recording("a", log, start=ConfigurationError("no file at x.yaml", "write it"))
    with pytest.raises(StartRefused, match=r"^'a' cannot start: no file at x\.yaml$") as refused:
        await start_instances([instance(broken)])
    assert refused.value.diagnostics[0].help == "write it"


@pytest.mark.asyncio
async def test_hanging_start_and_stop_end_after_their_time(log):
    with pytest.raises(StartRefused, match=r"did not start within 0\.01 s"):
        await start_instances([instance(Hanging("a", log))], timeout_seconds=0.01)
    with pytest.raises(ExceptionGroup) as group:
        await stop_instances([instance(Recording("b", log)), instance(Hanging("a", log))], timeout_seconds=0.01)
    (problem,) = group.value.exceptions
    assert str(problem) == "while stopping a (recording, acme 1.0): TimeoutError: it did not stop within 0.01 s"
    assert log == ["stop b"]


@pytest.mark.asyncio
async def test_behaviour_44_all_are_stopped_and_failures_reported(log):
    instances = [
        instance(Recording("a", log, stop=ValueError("one"))),
        instance(Recording("b", log)),
        instance(Recording("c", log, stop=OSError("two"))),
    ]

    with pytest.raises(ExceptionGroup) as group:
        await stop_instances(instances)

    assert log == ["stop c", "stop b", "stop a"]
    assert [(type(each.__cause__), str(each)) for each in group.value.exceptions] == [
        (OSError, "while stopping c (recording, acme 1.0): OSError: two"),
        (ValueError, "while stopping a (recording, acme 1.0): ValueError: one"),
    ]
