"""An event loop in virtual time: it never sleeps, its clock jumps to the next event."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import TypeVarTuple, Unpack

_REAL_WAIT_SECONDS = 5.0

Arguments = TypeVarTuple("Arguments")


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting, unless nothing is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(_REAL_WAIT_SECONDS)
        if timeout > 0:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs the tasks and timers of plugins, and between them the events of a simulation, which cost a tenth of a timer."""

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)
        self._soon = 0  # calls of `call_soon` so far
        self._timers: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._clock.now

    def call_soon(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        self._soon += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        heappush(self._timers, when)
        return super().call_at(when, callback, *args, context=context)

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Call `event` at a virtual time, after those added before for the same time. It must not raise."""
        heappush(self._events, (when, next(self._numbers), event))

    async def run_events(self) -> None:
        """Run the events in order, with the timers and tasks that are due in between, until none is left."""
        clock, events, timers = self._clock, self._events, self._timers
        quiet = -1
        while events:
            if self._soon != quiet:  # tasks can run: let them, and look again
                quiet = self._soon + 1
                await asyncio.sleep(0)
                continue
            due = events[0][0]
            while timers and timers[0] <= clock.now:
                heappop(timers)
            if timers and timers[0] < due:
                await asyncio.sleep(due - clock.now)
                quiet = -1
                continue
            if due > clock.now:
                clock.now = due
            heappop(events)[2]()
