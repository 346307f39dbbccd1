"""One time limit for many polls: a timer for all of them, not one for each."""

from __future__ import annotations

import asyncio


class TimeLimit:
    """Cancels tasks that take longer than `seconds`.

    A pool of a thousand endpoints makes thousands of polls a second, nearly all of which end in time: to start and stop a timer for each
    costs as much as the request that it guards. Polls of one source have one limit, so the first to begin is the first to be late.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began: dict[asyncio.Task[None], float] = {}
        """In the order in which they began."""
        self._late: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        """The task starts something that `end` ends."""
        now = loop.time()
        self._began[task] = now
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
            task, began = next(iter(self._began.items()))
            if began + self.seconds > now:
                self._timer = loop.call_at(began + self.seconds, self._cut_off, loop)
                return
            del self._began[task]
            self._late.add(task)
            task.cancel()

    def stop(self) -> None:
        """Cut off no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
