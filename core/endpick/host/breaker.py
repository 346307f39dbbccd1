"""The circuit breaker of a plugin instance: one that keeps failing, or keeps holding the event loop, is left out for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class BreakerState(IntEnum):
    """CLOSED: called. OPEN: left out. HALF_OPEN: called on probation; the next fault opens the circuit for twice as long."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class BreakerEvent(IntEnum):
    """What changes the state."""

    TRIPPED = 0
    COOLED = 1
    RECOVERED = 2


TRANSITIONS: Mapping[tuple[int, int], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.COOLED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.RECOVERED): BreakerState.CLOSED,
}

SHARE = 0.5
"""The share of calls that must fail, or of time that late calls must take."""
LATE_CALLS = 3
"""A single late call may be the first one, which imports or compiles something."""
QUIET_SECONDS = 60.0
"""Counting restarts at a fault that comes this long after the last one."""
LONGEST_COOL_DOWN_SECONDS = 300.0
PROBATION_CALLS = 20


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When an instance is left out, and for how long; the same for all instances of a process.

    Attributes:
        budget_seconds: A call that holds the event loop for longer is late.
        faults: This many open the circuit, if they are `SHARE` of the calls.
        cool_down_seconds: How long the circuit stays open the first time.
    """

    budget_seconds: float = 0.05
    faults: int = 20
    cool_down_seconds: float = 5.0


DEFAULT_SETTINGS = BreakerSettings()


class Breaker:
    """Counts the faults and late calls of one instance, and decides whether it may be called."""

    def __init__(self, settings: BreakerSettings, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self.state = BreakerState.CLOSED
        self.budget_seconds = settings.budget_seconds
        self.reason = ""
        self.calls = 0
        """Calls since counting started; the caller adds one for each."""
        self._settings = settings
        self._clock = clock
        self._faults = 0
        self._late = 0
        self._busy_seconds = 0.0
        self._counting_since = 0.0
        self._last_strike_at = float("-inf")
        self._cool_down_seconds = settings.cool_down_seconds
        self._open_until = 0.0

    def twin(self) -> Breaker:
        """A closed breaker with the same settings."""
        return Breaker(self._settings, self._clock)

    @property
    def seconds_left(self) -> float:
        """How long the circuit stays open; 0 when it is not open."""
        return max(0.0, self._open_until - self._clock()) if self.state is BreakerState.OPEN else 0.0

    def admits(self) -> bool:
        """True if the instance may be called now. Ask before each call while the state is not CLOSED."""
        if self.state is BreakerState.OPEN:
            if self._clock() < self._open_until:
                return False
            self._enter(BreakerEvent.COOLED)
            self.calls = 0
        elif self.state is BreakerState.HALF_OPEN and self.calls >= PROBATION_CALLS:
            self._enter(BreakerEvent.RECOVERED)
            self._cool_down_seconds = self._settings.cool_down_seconds
            self._last_strike_at = float("-inf")
        return True

    def failed(self, skips: bool) -> None:
        """Count a call that raised or answered something invalid.

        Args:
            skips: True if requests go on without the instance. If they are refused instead, the circuit stays closed: an open one would
                also refuse the requests on which the instance works.
        """
        self._strike(0.0)
        self._faults += 1
        if skips and self.state is BreakerState.HALF_OPEN:
            self._trip("it failed again")
        elif skips and self._faults >= self._settings.faults and self._faults >= SHARE * self.calls:
            self._trip(f"{self._faults} of {self.calls} calls failed")

    def took(self, seconds: float) -> None:
        """Count a call that held the event loop for longer than `budget_seconds`."""
        self._strike(seconds)
        self._late += 1
        self._busy_seconds += seconds
        elapsed = self._clock() - self._counting_since
        if self.state is BreakerState.HALF_OPEN:
            self._trip(f"a call held the event loop for {seconds:.1f} s again")
        elif self._late >= LATE_CALLS and self._busy_seconds >= SHARE * elapsed:
            self._trip(f"{self._late} calls held the event loop for {self._busy_seconds:.1f} s of {elapsed:.1f} s")

    def _strike(self, seconds: float) -> None:
        now = self._clock()
        if self.state is BreakerState.CLOSED and now - self._last_strike_at > QUIET_SECONDS:
            self.calls, self._faults, self._late, self._busy_seconds = 1, 0, 0, 0.0
            self._counting_since = now - seconds
        self._last_strike_at = now

    def _trip(self, reason: str) -> None:
        if self.state is BreakerState.OPEN:
            return
        if self.state is BreakerState.HALF_OPEN:
            self._cool_down_seconds = min(2.0 * self._cool_down_seconds, LONGEST_COOL_DOWN_SECONDS)
        self._enter(BreakerEvent.TRIPPED)
        self.reason = reason
        self._open_until = self._clock() + self._cool_down_seconds
        self._last_strike_at = float("-inf")

    def _enter(self, event: BreakerEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
