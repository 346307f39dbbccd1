"""Connections that come faster than they can be taken: each address has a few of them, and its others are closed before they cost much."""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["Rush"]

_FULL_TURNS: Final = 64
"""So many turns in a row left some waiting: four times what fills all seats came without a pause, which no gateway or prober does."""
_LASTS_SECONDS: Final = 1.0
"""After the last connection that was one too many."""
_SPAN_SECONDS: Final = 0.1
_MOST_IN_SPAN: Final = 4
"""Connections of one address: as many probes and scrapes as come at one moment."""


class Rush:
    """Notices it on one port, and says whose connections are too many then.

    To make a connection of what the kernel has accepted takes some hundred microseconds. Where a few addresses open more than there is
    time for, those of all others would wait in the kernel behind theirs, and be dropped there where it has no room.
    """

    def __init__(self) -> None:
        self._full_turns = 0
        self._ends_at = 0.0
        self._span_ends_at = 0.0
        self._in_span: Counter[str] = Counter()

    def turn_ended(self, now: float, *, left_some: bool) -> None:
        """Some connections have been taken; `left_some` says whether more may wait."""
        self._full_turns = self._full_turns + 1 if left_some else 0
        if self._full_turns >= _FULL_TURNS:
            self._ends_at = now + _LASTS_SECONDS

    def lasts(self, now: float) -> bool:
        """Whether there is one."""
        return now < self._ends_at

    def is_one_too_many(self, peer: str, now: float) -> bool:
        """Whether a connection of this address is to be closed in a rush, because of the others of it that have just come."""
        if now >= self._span_ends_at:
            self._span_ends_at = now + _SPAN_SECONDS
            self._in_span.clear()
        self._in_span[peer] += 1
        if self._in_span[peer] <= _MOST_IN_SPAN:
            return False
        self._ends_at = now + _LASTS_SECONDS
        return True
