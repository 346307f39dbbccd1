"""What is forgotten in the order of its last use: blocks of a cache, sessions, programs, endpoints with cold requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recency(OrderedDict[K, V]):
    """Values by key, the least recently used first. Looking at one is no use of it; `use` is.

    Whatever is forgotten is handed to the caller, who may have to forget more with it: a loop over `beyond` or `older` has to be run to
    its end.
    """

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
