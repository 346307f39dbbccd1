"""The circuit breaker of a plugin instance; it opens after repeated faults or calls that hold the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class BreakerState(IntEnum):
    """The state of a circuit. In HALF_OPEN, a fault opens it for twice as long as before."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


SHARE = 0.5  # of calls that must fail, or of time that late calls must take, to open the circuit
LATE_CALLS = 3  # more than one: the first call may import or compile something
QUIET_SECONDS = 60.0  # counting restarts at a fault this long after the last one
LONGEST_COOL_DOWN_SECONDS = 300.0
PROBATION_CALLS = 20


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """The limits of the circuit breakers of a process."""

    budget_seconds: float = 0.05  # a longer call is late
    faults: int = 20  # open the circuit, if they are `SHARE` of the calls
    cool_down_seconds: float = 5.0  # doubles with each probation that fails


DEFAULT_SETTINGS = BreakerSettings()


class Breaker:
    """Counts the faults and late calls of one instance, and opens its circuit. `clock` gives monotonic seconds."""

    def __init__(self, settings: BreakerSettings, clock: Callable[[], float]) -> None:
        self.state = BreakerState.CLOSED
        self.budget_seconds = settings.budget_seconds
        self.reason = ""
        self.calls = 0  # since counting started; the caller adds one for each call
        self._settings = settings
        self._clock = clock
        self._faults = 0
        self._late = 0
        self._busy_seconds = 0.0
        self._counting_since = 0.0
        self._last_strike_at = float("-inf")
        self._cool_down_seconds = settings.cool_down_seconds
        self._open_until = 0.0

    @property
    def seconds_left(self) -> float:
        """The seconds until the circuit admits calls; 0 unless it is open."""
        return max(0.0, self._open_until - self._clock()) if self.state is BreakerState.OPEN else 0.0

    def admits(self) -> bool:
        """Return True if the instance may be called. Ask before each call while the state is not CLOSED."""
        if self.state is BreakerState.OPEN:
            if self._clock() < self._open_until:
                return False
            self.state = BreakerState.HALF_OPEN
            self.calls = 0
        elif self.state is BreakerState.HALF_OPEN and self.calls >= PROBATION_CALLS:
            self.state = BreakerState.CLOSED
            self._cool_down_seconds = self._settings.cool_down_seconds
            self._last_strike_at = float("-inf")
        return True

    def failed(self, skips: bool) -> None:
        """Count a fault. Unless faults are skipped, the circuit stays closed: an open one would refuse every request."""
        self._strike(0.0)
        self._faults += 1
        if skips and self.state is BreakerState.HALF_OPEN:
            self._trip("it failed again")
        elif skips and self._faults >= self._settings.faults and self._faults >= SHARE * self.calls:
            self._trip(f"{self._faults} of {self.calls} calls failed")

    def took(self, seconds: float) -> None:
        """Count a call that exceeded the time budget by lasting `seconds`."""
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
        self.state = BreakerState.OPEN
        self.reason = reason
        self._open_until = self._clock() + self._cool_down_seconds
        self._last_strike_at = float("-inf")
