"""The turns in which what publishers send is read and followed, and the seats of those that send much at once.

However many send without an end, requests have most of the time, and little memory is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator

TURN_SECONDS = 0.001
"""For all publishers together."""
_REST = 2
"""How many times as long as a turn took everything else has before the next one."""
_DONE = object()
SEATS = 32
"""Connections that have a long message under way; others wait with theirs, in the memory of their publishers."""


class Turns:
    """Takes steps of many works, one of each after the other. A step is to take a fraction of a millisecond."""

    def __init__(self) -> None:
        self._works: deque[Iterator[None]] = deque()
        self._awaited: set[asyncio.Future[None]] = set()
        self._next: asyncio.Handle | None = None

    def join(self, work: Iterator[None]) -> None:
        """Take steps of it until it ends."""
        self._works.append(work)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._serve)

    async def finish(self, work: Iterator[None]) -> None:
        """The same, and wait for its end, or until no more steps are taken."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.add(done)

        def going() -> Iterator[None]:
            try:
                yield from work
            finally:
                self._end(done)

        self.join(going())
        try:
            await done
        finally:
            self._awaited.discard(done)

    def _end(self, done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_result(None)

    def close(self) -> None:
        """Take no more steps."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._works.clear()
        for done in self._awaited:
            self._end(done)

    def _serve(self) -> None:
        began = now = time.monotonic()
        try:
            while self._works and now - began < TURN_SECONDS:
                work = self._works.popleft()
                if next(work, _DONE) is not _DONE:
                    self._works.append(work)
                now = time.monotonic()
        finally:  # a work that fails is the only one that ends
            self._next = asyncio.get_running_loop().call_later(_REST * (now - began), self._serve) if self._works else None


class Seats:
    """For long messages, of all connections together; they are given in the order in which they are asked for."""

    def __init__(self) -> None:
        self.free = SEATS
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, seated: Callable[[], None]) -> bool:
        """Whether there is one at once; else `seated` is called when there is."""
        if self.free:
            self.free -= 1
            return True
        self._waiting.append(seated)
        return False

    def leave(self) -> None:
        """Give one back."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self.free += 1

    def forget(self, seated: Callable[[], None]) -> None:
        """Who would have been called waits no more."""
        if seated in self._waiting:
            self._waiting.remove(seated)
