"""Connections that come faster than they can be taken: each address has a few of them, and its others are closed before they cost much."""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["Rush"]

_FULL_TURNS: Final = 128
"""So many turns in a row left some waiting: no crowd of a few hundred does that, of whose address a probe may be, too."""
_FULL_TURNS_AGAIN: Final = 8
"""The same, of a rush that goes on after one."""
_MANY_WAIT_TURNS: Final = 2
"""So many turns in a row left some waiting: no client gets a seat at once."""
_AGAIN_SECONDS: Final = 1.0
_SPAN_SECONDS: Final = 0.1


class Rush:
    """Notices it on one port, and says whose connections are too many then.

    To make a connection of what the kernel has accepted takes some hundred microseconds. Where a few addresses open more than there is
    time for, those of all others would wait in the kernel behind theirs, and be dropped there where it has no room.
    """

    def __init__(self, connections: int | None) -> None:
        """Begin without one.

        Args:
            connections: So many of one address in a tenth of a second that have said something, and as many that have not, are not too
                many; None where none is.
        """
        self.lasts = False
        """Whether there is one: more have waited for long, and the turn under way has not found that there are none."""
        self.many_wait = False
        """Whether some have waited for turns; long before it is a rush, and on ports that bound none."""
        self._connections = connections
        self._full_turns = 0
        self._again_until = 0.0
        self._span_ends_at = 0.0
        self._in_span: Counter[tuple[str, bool]] = Counter()

    def turn_ended(self, now: float, *, left_some: bool) -> None:
        """Some connections have been taken; `left_some` says whether more may wait."""
        if not left_some:
            self.lasts, self.many_wait, self._full_turns = False, False, 0
            return
        self._full_turns += 1
        self.many_wait = self._full_turns >= _MANY_WAIT_TURNS
        if self._full_turns >= (_FULL_TURNS_AGAIN if now < self._again_until else _FULL_TURNS):
            self.lasts = True
            self._again_until = now + _AGAIN_SECONDS

    def is_one_too_many(self, peer: str, now: float, *, has_spoken: bool) -> bool:
        """Whether a connection of this address is to be closed in a rush, because of the others of it that have just come.

        One that has spoken does not make way for those that have not: a probe asks at once.
        """
        if self._connections is None:
            return False
        if now >= self._span_ends_at:
            self._span_ends_at = now + _SPAN_SECONDS
            self._in_span.clear()
        self._in_span[peer, has_spoken] += 1
        return self._in_span[peer, has_spoken] > self._connections
