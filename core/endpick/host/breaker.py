"""The circuit breaker of an instance: one that keeps failing, or keeps the event loop busy, is left out until it has recovered.

A call that goes well costs one comparison. What is counted begins with a first fault, and ends with a quiet time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class BreakerState(IntEnum):
    """Whether an instance is called."""

    CLOSED = 0
    """It is, and nothing is counted."""
    SUSPECTED = 1
    """It is; it failed or was late not long ago, so its calls are counted."""
    OPEN = 2
    """It is not: it is left out as its `onFault` says."""
    HALF_OPEN = 3
    """It is, again; the next fault opens the circuit at once, and for longer."""


class BreakerEvent(IntEnum):
    """What changes the state."""

    STRUCK = 0
    """A first call failed, or held the event loop for too long."""
    TRIPPED = 1
    """Too many did."""
    QUIET = 2
    """None did for a while."""
    COOLED = 3
    """The time for which the instance is left out is over."""
    PROVED = 4
    """Enough calls went well since."""


TRANSITIONS: Mapping[tuple[int, int], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.STRUCK): BreakerState.SUSPECTED,
    (BreakerState.SUSPECTED, BreakerEvent.QUIET): BreakerState.CLOSED,
    (BreakerState.SUSPECTED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.COOLED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.PROVED): BreakerState.CLOSED,
}


SHARE = 0.5
"""Of the calls that must fail, or of the time that late calls must take."""
LATE_CALLS = 3
"""One late call may be the first, which imports or compiles something."""
QUIET_SECONDS = 60.0
"""Without a fault or a late call for so long, what was counted is forgotten."""
LONGEST_COOL_DOWN_SECONDS = 300.0
PROOFS = 20
"""So many calls must go well before an instance has recovered."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When an instance is left out, and for how long; the same for all instances of a process.

    Attributes:
        budget_seconds: A call that holds the event loop for longer is late. `LATE_CALLS` of them open the circuit, if they take `SHARE` of
            the time.
        faults: So many open the circuit of an instance that may be skipped, if they are `SHARE` of the calls.
        cool_down_seconds: For how long an instance is left out the first time; twice as long each time that it fails right after.
    """

    budget_seconds: float = 0.05
    faults: int = 20
    cool_down_seconds: float = 5.0


DEFAULT_SETTINGS = BreakerSettings()


class Breaker:
    """Counts what goes wrong with one instance, and says whether it may be called."""

    def __init__(self, settings: BreakerSettings, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self.state = BreakerState.CLOSED
        self.budget_seconds = settings.budget_seconds
        self.reason = ""
        """Why the circuit was opened last."""
        self._settings = settings
        self._clock = clock
        self._calls = 0
        self._faults = 0
        self._late = 0
        self._began_at = 0.0
        self._struck_at = 0.0
        self._busy_seconds = 0.0
        self._cool_down_seconds = settings.cool_down_seconds
        self._open_until = 0.0

    def twin(self) -> Breaker:
        """A closed one with the same settings: for a part of what the instance does."""
        return Breaker(self._settings, self._clock)

    @property
    def seconds_left(self) -> float:
        """How long the instance is left out at least, from now on; 0 when it is called."""
        return max(0.0, self._open_until - self._clock()) if self.state is BreakerState.OPEN else 0.0

    def admits(self) -> bool:
        """Whether the instance may be called now. Asked before each call while the state is not CLOSED."""
        if self.state is BreakerState.OPEN:
            if self._clock() < self._open_until:
                return False
            self._enter(BreakerEvent.COOLED)
            self._calls = 0
            return True
        self._calls += 1
        if self.state is BreakerState.HALF_OPEN:
            if self._calls >= PROOFS:
                self._enter(BreakerEvent.PROVED)
                self._cool_down_seconds = self._settings.cool_down_seconds
        elif self._clock() - self._struck_at > QUIET_SECONDS:
            self._enter(BreakerEvent.QUIET)
        return True

    def failed(self, skipped: bool) -> None:
        """A call raised, or answered something invalid.

        Args:
            skipped: Whether requests go on without the instance then. Where they are refused instead, only the requests on which it fails
                should be: leaving it out would refuse the others, too.
        """
        self._strike(0.0)
        self._faults += 1
        if skipped and self._faults >= self._settings.faults and self._faults >= SHARE * self._calls:
            self._trip(f"{self._faults} of {self._calls} calls failed")
        elif skipped and self.state is BreakerState.HALF_OPEN:
            self._trip("it failed again")

    def took(self, seconds: float) -> None:
        """A call held the event loop for longer than `budget_seconds`."""
        self._strike(seconds)
        self._late += 1
        self._busy_seconds += seconds
        elapsed = self._clock() - self._began_at
        if self._late >= LATE_CALLS and self._busy_seconds >= SHARE * elapsed:
            self._trip(f"{self._late} calls held the event loop for {self._busy_seconds:.1f} s of {elapsed:.1f} s")
        elif self.state is BreakerState.HALF_OPEN:
            self._trip(f"a call held the event loop for {seconds:.1f} s again")

    def _strike(self, seconds: float) -> None:
        now = self._clock()
        if self.state is BreakerState.CLOSED:
            self._enter(BreakerEvent.STRUCK)
            self._calls, self._faults, self._late, self._busy_seconds = 1, 0, 0, 0.0
            self._began_at = now - seconds
        self._struck_at = now

    def _trip(self, reason: str) -> None:
        if self.state is BreakerState.OPEN:  # a request that was sent before is told of its end
            return
        again = self.state is BreakerState.HALF_OPEN
        self._enter(BreakerEvent.TRIPPED)
        if again:
            self._cool_down_seconds = min(2.0 * self._cool_down_seconds, LONGEST_COOL_DOWN_SECONDS)
        self.reason = reason
        self._open_until = self._clock() + self._cool_down_seconds
        self._faults = self._late = 0

    def _enter(self, event: BreakerEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
