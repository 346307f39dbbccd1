"""How often an endpoint with nothing to do is asked: ever less often while its answers repeat, and as usual at once when they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass

REPEATS_BEFORE_STRETCHING = 5
"""Answers in a row that say nothing new, after which an endpoint is asked less often."""
_LOOKS_WHILE_FRESH = 2
"""How often an endpoint is asked at least within the shortest time after which a plugin takes its data for stale."""


@dataclass(slots=True)
class PollCounts:
    """What became of the polls that were due, over the life of a process."""

    made: int = 0
    skipped: int = 0
    """Of endpoints with nothing to do."""

    def snapshot(self) -> dict[str, int]:
        """By event, for `/metrics`."""
        return {"made": self.made, "skipped": self.skipped}


def longest_stretch(interval_seconds: float, idle_interval_seconds: float, tolerated_age_seconds: float) -> int:
    """How many intervals may pass at most between two polls of an idle endpoint; 1 where it is asked as often as a busy one.

    Args:
        interval_seconds: between two polls of a busy one.
        idle_interval_seconds: what the operator allows.
        tolerated_age_seconds: the shortest age at which a plugin takes data for stale; infinite when none looks at ages.
    """
    longest = min(idle_interval_seconds, tolerated_age_seconds / _LOOKS_WHILE_FRESH)
    return max(1, math.floor(longest / interval_seconds + 1e-9))


class Pace:
    """Which of the polls of one endpoint by one source are made."""

    __slots__ = ("_counts", "_last", "_longest", "_repeats", "_stretch", "_to_skip")

    def __init__(self, longest: int, counts: PollCounts) -> None:
        """Every poll is made at first; `longest` is what `longest_stretch` says."""
        self._longest = longest
        self._counts = counts
        self._stretch = 1
        self._to_skip = 0
        self._repeats = 0
        self._last: object = None

    def is_due(self) -> bool:
        """Asked once in each interval: whether the poll is made this time."""
        if self._to_skip:
            self._to_skip -= 1
            self._counts.skipped += 1
            return False
        self._to_skip = self._stretch - 1
        self._counts.made += 1
        return True

    def answered(self, payload: object) -> None:
        """The same object again means that nothing changed."""
        if payload is not self._last:
            self._last = payload
            self.reset()
            return
        self._repeats += 1
        if self._repeats >= REPEATS_BEFORE_STRETCHING:
            self._stretch = min(self._stretch * 2, self._longest)

    def reset(self) -> None:
        """Ask as often as usual, beginning with the next interval: a request was sent, a poll failed, or something changed."""
        self._stretch, self._to_skip, self._repeats = 1, 0, 0
