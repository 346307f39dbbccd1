"""LRU dictionary, and client-chosen ids bounded in length."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONGEST_ID: Final = 128  # bytes; clients choose ids and must not fill the memory with them


def kept_id(chosen: str) -> str:
    """Return the id that a client chose, or its hash if it is too long to keep."""
    if len(chosen) <= LONGEST_ID and chosen.isascii():
        return chosen
    return blake2b(chosen.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Recency(OrderedDict[K, V]):
    """Values by key, least recently used first; reading is not a use. `trim` and `expire` return the removed entries."""

    def use(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)

    def trim(self, most: int) -> list[tuple[K, V]]:
        """Remove the oldest entries until at most `most` are left."""
        return [self.popitem(last=False) for _ in range(len(self) - most)]

    def expire(self, is_over: Callable[[V], bool]) -> list[tuple[K, V]]:
        """Remove the oldest entries while `is_over` is true for them."""
        expired = []
        while self and is_over(next(iter(self.values()))):
            expired.append(self.popitem(last=False))
        return expired
