"""Lets answers that take long to read through one after the other, so that many servers that send such cannot hold the process together.

There are two gates. Of a long answer no more is received than its beginning until it has one of some seats, which bounds what is read at a
time, and the memory that it takes. And once it is complete, it waits until those before it were unpacked and read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from endpick_builtin.collection.page_limits import MAX_PAGE_BYTES, stretch_of

LONG_BYTES = 256 * 1024
"""An answer of more waits for its turn; the pages of model servers have a tenth to a third of it."""
_BYTES_PER_SECOND = 64 * 1024 * 1024
"""Rested for what is read of an answer after this: collectors take some 5 ms for a mebibyte, and may take a third of the time."""
_REST = 3.0
"""How many times as long as unpacking took nothing more is unpacked."""
_LONG_SECONDS = 0.005
"""To unpack one, after which everything else has a turn before it is read."""
_SEATS = 4
"""Longest answers that are in memory at once."""
_SEAT_SECONDS = 0.2
"""After which an answer that is still coming gives up its seat where others wait: a server that sends slowly delays them no longer. For
answers of 8 MiB; where longer ones are allowed they have as much longer, or none would come through on a busy day."""


class LongAnswer(Protocol):
    """One that is being received."""

    def go_on(self) -> None:
        """It has a seat: receive the rest."""

    def give_up(self) -> None:
        """It took too long: fail, and `leave`."""


class LongAnswers:
    """The gates of one client of pages. Each answer that passes has a moment for itself, and after it everything else has longer."""

    def __init__(self, longest_bytes: int = MAX_PAGE_BYTES) -> None:
        """`longest_bytes`: of an answer, unpacked."""
        self._stretch = stretch_of(longest_bytes)
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._seated: dict[LongAnswer, float] = {}
        """Until when it may be received though others wait, in the order in which they sat down."""
        self._waiting: dict[LongAnswer, None] = {}
        self._look: asyncio.TimerHandle | None = None

    def enter(self, answer: LongAnswer) -> bool:
        """An answer turns out to be long: whether to receive the rest at once, and not only when `go_on` is called. `leave` must follow."""
        if len(self._seated) < _SEATS:
            self._sit(answer)
            return True
        self._waiting[answer] = None
        self._look_again()
        return False

    def leave(self, answer: LongAnswer) -> None:
        """It has been read, or failed; nothing happens for one that did not enter."""
        self._waiting.pop(answer, None)
        if self._seated.pop(answer, None) is not None and self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._sit(following)
            following.go_on()

    async def read(self, body: Callable[[], bytes], answer: LongAnswer | None = None) -> bytes:
        """What `body` makes of an answer, once it is its turn; called with answers that are long, or packed.

        Raises:
            What `body` raises.
        """
        if answer is not None and answer in self._seated:
            self._seated[answer] = math.inf
        async with self._turn:
            loop = asyncio.get_running_loop()
            wait = self._free_at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            began = now = loop.time()
            size = 0
            try:
                # zlib lets others run meanwhile, which an answer of a few bytes that unpacks to 64 MiB would else hold up for long.
                unpacked = await asyncio.to_thread(body) if self._stretch > 1 else body()
                size = len(unpacked)
                now = loop.time()
                if now - began > _LONG_SECONDS:
                    await asyncio.sleep(now - began)  # what reads it takes long as well
            finally:
                now = loop.time()
                self._free_at = now + _REST * (now - began) + size / _BYTES_PER_SECOND
            return unpacked

    def _sit(self, answer: LongAnswer) -> None:
        self._seated[answer] = asyncio.get_running_loop().time() + _SEAT_SECONDS * self._stretch
        self._look_again()

    def _look_again(self) -> None:
        """See to it that those who wait do so no longer than those who sit may take."""
        if self._waiting and self._look is None and self._seated:
            until = min(self._seated.values())
            if until < math.inf:
                self._look = asyncio.get_running_loop().call_at(until, self._make_room)

    def _make_room(self) -> None:
        self._look = None
        now = asyncio.get_running_loop().time()
        if self._waiting:
            for answer in [one for one, until in self._seated.items() if until <= now]:
                answer.give_up()
                self.leave(answer)
        self._look_again()
