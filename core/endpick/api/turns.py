"""The turns in which connections that send much are read: one after another, and all of them together briefly.

A turn of one connection is short. A hundred connections with a turn each are not, and everything else of the process would wait for all
of them. So connections that have more to be read stand in a queue of their port, which is served for `read_seconds_per_turn` between
two looks at everything else, however many stand in it. Addresses take turns in it: who has four hundred connections gets no more of it
than a gateway that has one.

Short reads are acted on at once. Five hundred connections that send a little at the same moment would have everything wait for a second
all the same; so when there are many, the time that goes to short reads between two looks is limited as well, and the rest joins the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_READ_BYTES: Final = 4096
"""A read of no more is acted on at once, whatever waits: it is what a gateway sends for some requests."""


MANY_CONNECTIONS: Final = 16
"""Of fewer, what all of them send at one moment is acted on within the turns of each."""


class Turns:
    """The queue of one port."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is for how long turns are taken before everything else has its own."""
        self._seconds = seconds
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """By address; the first is the next."""
        self._count = 0
        self.scheduled = False
        """Whether any connection waits for its turn: what more than `LARGE_READ_BYTES` others read then has to wait behind it."""
        self.crowded = False
        """Whether there are more than `MANY_CONNECTIONS`, so that `took` is to be told of short reads; set by the owner of the port."""
        self.exhausted = False
        """Whether short reads, or a turn that `overran`, took so long between two looks at everything that further ones have to wait."""
        self.at_once_seconds = 0.004
        """For short reads between two looks at everything else, where there are many connections."""
        self._left = self.at_once_seconds
        self._is_counting = False
        self._overran = False

    def join(self, turn: Callable[[], None], peer: str = "") -> None:
        """Call it once, when its time has come; it may join again meanwhile.

        Args:
            turn: Called after all of the same address that joined before.
            peer: The address. What ends connections that are gone has none, and takes its turns like one.
        """
        of_peer = self._waiting.get(peer)
        if of_peer is None:
            self._waiting[peer] = deque((turn,))
        else:
            of_peer.append(turn)
        self._count += 1
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def took(self, seconds: float) -> None:
        """So long a short read has taken."""
        self._left -= seconds
        self.exhausted = self._overran or self._left <= 0
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._count_anew)

    def overran(self) -> None:
        """A turn takes long, because memory is given back in it: let everything else have its own before the next one."""
        self._overran = True
        self.took(0.0)

    def _count_anew(self) -> None:
        self._is_counting = self.exhausted = self._overran = False
        self._left = self.at_once_seconds

    def _serve(self) -> None:
        ends_at = time.monotonic() + self._seconds
        for _ in range(self._count):
            peer = next(iter(self._waiting))
            of_peer = self._waiting.pop(peer)
            turn = of_peer.popleft()
            if of_peer:
                self._waiting[peer] = of_peer
            self._count -= 1
            turn()
            if self._overran or time.monotonic() >= ends_at:
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        else:
            self.scheduled = False
