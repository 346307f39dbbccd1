"""Awaits a plugin for so long and no longer, whatever it does with its cancellation.

A task of its own runs what a plugin gives to await. The host waits for that task, and leaves it behind where it does not end: within the
task of the host a plugin that swallows its cancellation would hold up for ever what comes after it. What a plugin throws leaves the task as
a value, because an event loop would let `SystemExit` end the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")

GRACE_SECONDS = 0.1
"""How long a plugin may take to end after it was cancelled, before the host goes on without it."""

_left: set[asyncio.Task[None]] = set()
"""Tasks that were cancelled, until they end: the event loop itself keeps no task from the garbage collector."""


class LateError(TimeoutError):
    """A plugin took longer than it may.

    Attributes:
        task: What goes on although it was cancelled; None where it has ended.
    """

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        super().__init__()
        self.task = task


async def attempt(call: Callable[[], Awaitable[T]], limit_seconds: float) -> T:
    """Call a plugin and await what it gives.

    Args:
        call: Gives what is to be awaited; whatever it raises counts as raised by the plugin.
        limit_seconds: After so long the plugin is cancelled, and left to itself where it does not heed that.

    Raises:
        LateError: It took too long.
        Anything: What the plugin raised.
    """
    loop = asyncio.get_running_loop()
    outcome: _Outcome[T] = _Outcome(loop.create_future())
    task = loop.create_task(outcome.come_about(call))
    timer = loop.call_later(limit_seconds, outcome.wake)
    try:
        await outcome.waiter
    except asyncio.CancelledError:
        leave(task)
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        raise
    finally:
        timer.cancel()
    if not outcome.has_come:
        leave(task)
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        raise LateError(None if task.done() else task)
    return outcome.get()


def leave(task: asyncio.Task[None]) -> None:
    """Ask a task to end, and keep it until it does."""
    _left.add(task)
    task.add_done_callback(_left.discard)
    task.cancel()


class _Outcome(Generic[T]):
    """What came of a call: nothing else leaves its task, not even a `GeneratorExit` of the plugin."""

    __slots__ = ("_answer", "_problem", "has_come", "waiter")

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        """`waiter` is woken when it has come, without a turn of the event loop in between."""
        self.waiter = waiter
        self.has_come = False
        self._answer: T | None = None
        self._problem: BaseException | None = None

    async def come_about(self, call: Callable[[], Awaitable[T]]) -> None:
        """Call, await and remember."""
        try:
            self._answer = await call()
        except BaseException as problem:
            self._problem = problem
        self.has_come = True
        self.wake()

    def wake(self) -> None:
        """Have the host look whether it has come; it does not wait any more where it was cancelled."""
        if not self.waiter.done():
            self.waiter.set_result(None)

    def get(self) -> T:
        """The answer; what was raised is raised again."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        return cast("T", self._answer)
