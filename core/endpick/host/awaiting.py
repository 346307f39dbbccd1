"""Calls async plugin methods; not in `boundary`, because the compiled build leaves coroutines interpreted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from time import perf_counter
from types import coroutine
from typing import Protocol, TypeVar

from endpick.api.access import Access, AccessScope
from endpick.api.fast_metrics import Distribution
from endpick.host.breaker import Breaker
from endpick.host.failures import PLUGIN_ERRORS, FaultOfAnother

T = TypeVar("T")


class _Step(Protocol):
    breaker: Breaker
    call: Callable[..., object]
    scope: AccessScope
    timer: Distribution

    def admitted(self) -> bool: ...
    def left_out(self) -> object: ...
    def fault(self, problem: BaseException | str) -> object: ...
    def held(self, seconds: float) -> None: ...


def is_being_cancelled() -> bool:
    """Return True while the current task is being cancelled; a plugin's own CancelledError does not count."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def call_awaited(step: _Step, access: Access, timeout_seconds: float, arguments: tuple[object, ...]) -> object:
    """Await a plugin's method; returns its answer or a fault. Called by `Step.run_async`."""
    if step.breaker.state and not step.admitted():
        return step.left_out()
    step.breaker.calls += 1
    too_late = f"took longer than {timeout_seconds:g} s"
    started = perf_counter()
    try:
        async with asyncio.timeout(timeout_seconds) as deadline:
            answer = await _confined(step, access, arguments)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return step.fault("cancelled itself")
    except FaultOfAnother as nested:
        return nested.fault
    except PLUGIN_ERRORS as error:
        return step.fault(too_late if deadline.expired() else error)
    finally:
        step.timer.observe(perf_counter() - started)
    return step.fault(too_late) if deadline.expired() else answer


@coroutine
def _confined(step: _Step, access: Access, arguments: tuple[object, ...]) -> Generator[object, None, object]:
    awaited = _stretch(step, access, partial(_begin, step, arguments))
    resume: Callable[[], object] = partial(next, awaited)
    while True:
        try:
            pending = _stretch(step, access, resume)
        except StopIteration as end:
            return end.value
        try:
            yield pending
            resume = partial(next, awaited)
        except BaseException as error:  # a cancellation, for the plugin to handle
            resume = partial(awaited.throw, error)


def _begin(step: _Step, arguments: tuple[object, ...]) -> Generator[object, None, object]:
    answer = step.call(*arguments)
    if not isinstance(answer, Awaitable):
        raise TypeError(f"returned {type(answer).__name__}, not an awaitable")
    return answer.__await__()


def _stretch(step: _Step, access: Access, run: Callable[[], T]) -> T:
    caller, access.scope = access.scope, step.scope
    started = perf_counter()
    try:
        return run()
    finally:
        seconds = perf_counter() - started
        access.scope = caller
        if seconds > step.breaker.budget_seconds:
            step.held(seconds)
