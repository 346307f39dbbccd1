"""How much all streams of a listener may hold together."""

from __future__ import annotations

__all__ = ["MemoryBudget"]


class MemoryBudget:
    """Bytes that many streams share; whoever takes some gives them back, also those that were one too many."""

    __slots__ = ("_limit_bytes", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def hold(self, size: int) -> bool:
        """Account `size` more, or fewer if negative; False if that is more than there is."""
        self.held_bytes += size
        return size <= 0 or self.held_bytes <= self._limit_bytes
