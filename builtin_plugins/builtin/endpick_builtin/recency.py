"""LRU dictionary, and client-chosen ids bounded in length."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONGEST_ID: Final = 128  # bytes; clients choose ids and must not fill the memory with them


def kept_id(chosen: str) -> str:
    """The id that a client chose, or the hash of a long one."""
    if len(chosen) <= LONGEST_ID and chosen.isascii():
        return chosen
    return blake2b(chosen.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Recency(OrderedDict[K, V]):
    """Values by key, least recently used first; reading is not a use. `beyond` and `older` remove entries lazily."""

    def use(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)

    def beyond(self, most: int) -> Iterator[tuple[K, V]]:
        """Remove the oldest entries until at most `most` are left."""
        while len(self) > most:
            yield self.popitem(last=False)

    def older(self, is_over: Callable[[V], bool]) -> Iterator[tuple[K, V]]:
        """Remove the oldest entries while `is_over` is true for them."""
        while self and is_over(next(iter(self.values()))):
            yield self.popitem(last=False)
