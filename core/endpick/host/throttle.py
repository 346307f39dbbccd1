"""How often the same thing is told: once in a while, and of no more endpoints than a reader could read of."""

from __future__ import annotations

from collections.abc import Callable

_MAX_TOPICS = 10_000


class Throttle:
    """Lets each log message through once per interval, and counts how often it was held back since."""

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, topic: str) -> int | None:
        """How many were held back since the topic was last let through; None when this one is held back too."""
        now = self._clock()
        last = self._last.get(topic)
        if last is not None and now - last[0] < self._interval_seconds:
            self._last[topic] = (last[0], last[1] + 1)
            return None
        if len(self._last) >= _MAX_TOPICS:
            self._last.clear()
        self._last[topic] = (now, 0)
        return 0 if last is None else last[1]


class LineBudget:
    """So many log lines of a kind in an interval: where each of a thousand endpoints has trouble, some of them say what it is."""

    LINES = 20

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._spent: dict[str, tuple[float, int]] = {}
        """By kind, when the interval began, and the lines since."""

    def is_spent(self, kind: str) -> bool:
        """Whether the lines of this interval have been written."""
        began, lines = self._spent.get(kind, (0.0, 0))
        return lines >= self.LINES and self._clock() - began < self._interval_seconds

    def spend(self, kind: str) -> bool:
        """A line is written; True when it is the last of the interval."""
        now = self._clock()
        began, lines = self._spent.get(kind, (now, 0))
        if now - began >= self._interval_seconds:
            began, lines = now, 0
        self._spent[kind] = began, lines + 1
        return lines + 1 == self.LINES
