"""Checks of an instance's life: start, use, stop, and a second instance beside it, as after a reload."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator

from endpick.api.datalayer import DataSource
from endpick.api.errors import ConfigurationError
from endpick.diagnostics import Diagnostic
from endpick.host.failures import PLUGIN_ERRORS
from endpick.testing.bench import Bench, Raised, benches, make_bench
from endpick.testing.check import Finding, check
from endpick.testing.exercise import walk_one
from endpick.testing.plugin_under_test import PluginUnderTest
from endpick.testing.side_effects import Running, tasks_left
from endpick.testing.source_runner import Stubborn, answering, payloads_from, run, started


@check()
def starts_and_stops(subject: PluginUnderTest) -> Iterator[Finding]:
    """`start` and `stop` work; `start` may refuse with `ConfigurationError`."""
    for bench in benches(subject):
        problem = _raised_by(_only_start(bench))
        if problem is not None and not isinstance(problem.problem, ConfigurationError):
            yield Finding(f"`start` or `stop` raises {problem}", "raise ConfigurationError from `start`, and nothing from `stop`")
            return


@check()
def leaves_nothing_running(subject: PluginUnderTest) -> Iterator[Finding]:
    """After `stop` no task, no thread and no socket of the plugin is left."""
    for bench in benches(subject):
        before = Running.now()
        try:
            left = run(tasks_left(_use_of(bench)))
        except Stubborn:
            return  # `source_heeds_cancellation` says so
        left = (*left, *before.added(Running.now()))
        if left:
            yield Finding(f"after `stop`, it leaves {' and '.join(left)}", "cancel tasks and close sessions in `stop`, and await both")
            return


@check()
def works_after_a_reload(subject: PluginUnderTest) -> Iterator[Finding]:
    """A second instance works when the first, beside which it was built, has stopped."""
    for block, parameters in subject.valid_blocks():
        first, second, alone = (make_bench(subject, block.origin, parameters) for _ in range(3))
        if isinstance(first, Diagnostic) or isinstance(second, Diagnostic) or isinstance(alone, Diagnostic):
            continue  # `can_be_built` says so
        failing, failing_alone = run(_failing_after(first, second)), run(_failing_after(None, alone))
        new = {method: raised for method, raised in failing.items() if method not in failing_alone}
        for method, raised in new.items():
            yield Finding(f"once another instance has stopped, `{method}` raises {raised}", "share nothing between instances")
            return


def _use_of(bench: Bench) -> Callable[[], Awaitable[None]]:
    async def use() -> None:
        """The life of an instance, with a server to poll; whatever goes wrong on the way, only what is left counts here."""
        try:
            async with answering("an empty page") as endpoint, started(bench):
                if isinstance(bench.instance.plugin, DataSource):
                    await payloads_from(bench, endpoint)
                for _, value in walk_one(bench, bench.scene()):
                    await _settled(value)
        except Stubborn:
            raise
        except PLUGIN_ERRORS:
            return

    return use


def _raised_by(life: Coroutine[object, object, None]) -> Raised | None:
    try:
        run(life)
    except PLUGIN_ERRORS as problem:
        return Raised(problem)
    return None


async def _only_start(bench: Bench) -> None:
    async with started(bench):
        await asyncio.sleep(0)


async def _failing_after(first: Bench | None, second: Bench) -> dict[str, Raised]:
    """The methods of the second instance that raise, after the first one has come and gone while the second was running."""
    try:
        if first is not None:
            await first.instance.plugin.start()
        async with started(second):
            if first is not None:
                await first.instance.plugin.stop()
            said = [(method, await _settled(value)) for method, value in walk_one(second, second.scene())]
            return {method: value for method, value in said if isinstance(value, Raised)}
    except PLUGIN_ERRORS as problem:
        return {"start": Raised(problem)}


async def _settled(value: object) -> object:
    """What a method answered; for one that waits, what it came to, or `Raised`."""
    if not inspect.isawaitable(value):
        await asyncio.sleep(0)
        return value
    try:
        return await value
    except PLUGIN_ERRORS as problem:
        return Raised(problem)
