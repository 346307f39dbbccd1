"""Limits how often the same log line is written."""

from __future__ import annotations

from collections.abc import Callable

_MAX_TOPICS = 10_000


class Throttle:
    """Admits each topic once per interval, and counts the suppressed lines."""

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, topic: str) -> int | None:
        """The number of lines suppressed since the last admitted one; None to suppress this line too."""
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
    """A maximum of log lines per kind and interval, for faults of many endpoints at once."""

    LINES = 20

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._spent: dict[str, tuple[float, int]] = {}
        """For each kind, the start of the interval and the lines written since."""

    def is_spent(self, kind: str) -> bool:
        """True if no line is left in this interval."""
        began, lines = self._spent.get(kind, (0.0, 0))
        return lines >= self.LINES and self._clock() - began < self._interval_seconds

    def spend(self, kind: str) -> bool:
        """Count a written line; True if it was the last one of the interval."""
        now = self._clock()
        began, lines = self._spent.get(kind, (now, 0))
        if now - began >= self._interval_seconds:
            began, lines = now, 0
        self._spent[kind] = began, lines + 1
        return lines + 1 == self.LINES
