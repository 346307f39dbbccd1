"""How long to wait before something that ended is started again."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0


class Backoff:
    """Doubles from half a second to thirty; starts over after a run that lasted longer than the longest delay."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay_after(self, ran_seconds: float) -> float:
        """Seconds to wait, given how long the last run lasted."""
        if ran_seconds > LONGEST_DELAY_SECONDS:
            self._next = FIRST_DELAY_SECONDS
        delay = self._next
        self._next = min(delay * 2, LONGEST_DELAY_SECONDS)
        return delay
