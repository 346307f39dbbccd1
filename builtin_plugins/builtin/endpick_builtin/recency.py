"""What is forgotten in the order of its last use: blocks of a cache, sessions, programs, endpoints with cold requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONGEST_ID: Final = 128
"""Bytes. A longer id is kept as its hash: clients choose ids, and must not fill the memory with them."""
FORGOTTEN_AT_ONCE: Final = 4000
"""To forget a key takes half a microsecond, and two hundred thousand may be over at one moment."""


def kept_id(chosen: str) -> str:
    """What is kept of an id that a client chose: the id itself, or the hash of a long one."""
    if len(chosen) <= LONGEST_ID and chosen.isascii():
        return chosen
    return blake2b(chosen.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Recency(OrderedDict[K, V]):
    """Values by key, the least recently used first. Looking at one is no use of it; `use` is.

    Whatever is forgotten is handed to the caller, who may have to forget more with it: a loop over `beyond` or `older` has to be run to
    its end.
    """

    _goal: int | None = None

    @property
    def is_halving(self) -> bool:
        """Whether `half` was called, and has left some for the next call."""
        return self._goal is not None

    def half(self) -> Iterator[tuple[K, V]]:
        """Forget the half that was used least recently, `FORGOTTEN_AT_ONCE` of it at most; they come with their values."""
        if self._goal is None:
            self._goal = len(self) // 2
        for _ in range(FORGOTTEN_AT_ONCE):
            if len(self) <= self._goal:
                self._goal = None
                return
            yield self.popitem(last=False)

    def halve(self) -> bool:
        """As `half`, for what is forgotten alone; whether there is more, for which it is to be called again."""
        for _ in self.half():
            pass
        return self.is_halving

    def use(self, key: K, value: V) -> None:
        """This is the value of the key now, and the key the one used last."""
        self[key] = value
        self.move_to_end(key)

    def beyond(self, most: int) -> Iterator[tuple[K, V]]:
        """Forget the least recently used keys until there are no more than so many; they come with their values."""
        while len(self) > most:
            yield self.popitem(last=False)

    def older(self, is_over: Callable[[V], bool]) -> Iterator[tuple[K, V]]:
        """Forget the least recently used keys as long as their values are over; they come with their values.

        For values that say when they were used: it looks at no more of them than it forgets, and one.
        """
        while self and is_over(next(iter(self.values()))):
            yield self.popitem(last=False)
