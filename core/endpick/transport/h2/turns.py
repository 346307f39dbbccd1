"""The turns in which connections that send much are read: one after another, and all of them together briefly.

A turn of one connection is short. A hundred connections with a turn each are not, and everything else of the process would wait for all
of them. So connections that have more to be read stand in a queue of their server, which is served for `read_seconds_per_turn` between
two looks at everything else, however many stand in it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_READ_BYTES: Final = 4096
"""A read of no more is acted on at once, whatever waits: it is what a gateway sends for some requests."""


class Turns:
    """The queue of one server."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is for how long turns are taken before everything else has its own."""
        self._seconds = seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self.scheduled = False
        """Whether any connection waits for its turn: what more than `LARGE_READ_BYTES` others read then has to wait behind it."""
        self.overrun = False
        """Whether a turn has just taken long: what others have read in the same turn of the event loop waits, however little it is."""

    def join(self, turn: Callable[[], None]) -> None:
        """Call it once, when all that joined before have been called; it may join again meanwhile."""
        self._waiting.append(turn)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def overran(self) -> None:
        """A turn takes long, because memory is given back in it: let everything else have its own before the next one."""
        if not self.overrun:
            self.overrun = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.overrun = False

    def _serve(self) -> None:
        ends_at = time.monotonic() + self._seconds
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self.overrun or time.monotonic() >= ends_at:
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        else:
            self.scheduled = False
