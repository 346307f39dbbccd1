"""When streams have to be over, because their clients said so."""

from __future__ import annotations

import heapq
from collections.abc import Container

__all__ = ["Deadlines"]


class Deadlines:
    """Deadlines of the streams of one connection, next first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._pruned_length = 32

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> float | None:
        """The next one; its stream may have ended already."""
        return self._heap[0][0] if self._heap else None

    def add(self, when: float, stream_id: int, still_open: Container[int]) -> None:
        """Remember a deadline, and now and then forget those of streams that are not in `still_open` any more.

        Streams usually end long before their deadline; without that the heap would hold them until then.
        """
        if len(self._heap) >= 2 * self._pruned_length:
            self._heap = [entry for entry in self._heap if entry[1] in still_open]
            heapq.heapify(self._heap)
            self._pruned_length = max(32, len(self._heap))
        heapq.heappush(self._heap, (when, stream_id))

    def due(self, now: float) -> list[int]:
        """Take out the streams whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[1])
        return found
