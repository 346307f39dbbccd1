"""Lets a repeated message through once per interval."""

from __future__ import annotations

from collections.abc import Callable

_MAX_TOPICS = 10_000


class Throttle:
    """Remembers when each topic was last let through, and how often it was held back since."""

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
