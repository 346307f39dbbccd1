"""One time limit for many polls: a timer for all of them, not one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GRACE_SECONDS = 1.0
"""How long a task may go on after it was cut off before that is told."""


def _nothing_to_tell(_name: str) -> None:
    """For those whom it does not concern."""


class TimeLimit:
    """Cancels tasks that take longer than `seconds`.

    A pool of a thousand endpoints makes thousands of polls a second, nearly all of which end in time: to start and stop a timer for each
    costs as much as the request that it guards. Polls of one source have one limit, so the first to begin is the first to be late.
    """

    def __init__(self, seconds: float, unheeded: Callable[[str], None] = _nothing_to_tell) -> None:
        """`unheeded` is told the name of what was begun where it goes on after it was cut off."""
        self.seconds = seconds
        self._unheeded = unheeded
        self._began: dict[asyncio.Task[None], tuple[float, str]] = {}
        """In the order in which they began, each with its name."""
        self._late: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop, name: str = "") -> None:
        """The task starts something that `end` ends."""
        now = loop.time()
        self._began[task] = now, name
        if self._timer is None:
            self._timer = loop.call_at(now + self.seconds, self._cut_off, loop)

    def end(self, task: asyncio.Task[None]) -> bool:
        """What the task began has ended; whether it took too long, and the task was cancelled for that: this is undone."""
        if self._began.pop(task, None) is not None:
            return False
        if task not in self._late:
            return False
        self._late.discard(task)
        task.uncancel()
        return True

    def _cut_off(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._began:
            task, (began, name) = next(iter(self._began.items()))
            if began + self.seconds > now:
                self._timer = loop.call_at(began + self.seconds, self._cut_off, loop)
                return
            del self._began[task]
            self._late.add(task)
            task.cancel()
            loop.call_later(GRACE_SECONDS, self._look_again, task, name)

    def _look_again(self, task: asyncio.Task[None], name: str) -> None:
        if task in self._late:
            self._unheeded(name)

    def stop(self) -> None:
        """Cut off no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
