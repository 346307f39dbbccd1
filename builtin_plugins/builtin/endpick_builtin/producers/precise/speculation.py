"""Blocks that count as held from the moment that a request is sent, until the engine's word for them can have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from endpick_builtin.producers.precise.tier_index import SPECULATIVE, TierIndex


class Speculation:
    """Adds them to an index, and removes them in time."""

    def __init__(self, index: TierIndex, seconds: float) -> None:
        """`seconds`: how long a block counts after the last request that brought it."""
        self._index, self._seconds = index, seconds
        self._until: dict[tuple[int, int], float] = {}
        self._due: deque[tuple[float, int, tuple[int, ...]]] = deque()

    def add(self, slot: int, keys: Sequence[int], now: float) -> None:
        """A request with these blocks is on its way to the endpoint."""
        until, keys = now + self._seconds, tuple(dict.fromkeys(keys))  # equal prompts of one request have equal blocks
        self._index.add(slot, SPECULATIVE, keys)
        self._until.update(((slot, key), until) for key in keys)
        self._due.append((until, slot, keys))

    def expire(self, now: float) -> None:
        """Remove what has counted long enough."""
        while self._due and self._due[0][0] <= now:
            _, slot, keys = self._due.popleft()
            over = [key for key in keys if self._until.get((slot, key), now + 1.0) <= now]
            for key in over:
                del self._until[slot, key]
            self._index.discard(slot, SPECULATIVE, over)

    def forget(self, slot: int) -> None:
        """The endpoint has left."""
        mine = [key for place, key in self._until if place == slot]
        for key in mine:
            del self._until[slot, key]
        self._index.discard(slot, SPECULATIVE, mine)
        self._due = deque(entry for entry in self._due if entry[1] != slot)
