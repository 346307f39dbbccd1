"""Evicts requests in flight to make room for waiting requests of higher priority."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import attrgetter
from typing import Protocol

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.flow_control import DispatchedRequest, SortKey
from endpick.api.request import InferenceRequest
from endpick.flow_control.policies import BoundEviction, checked_evictable, checked_key
from endpick.flow_control.queues import BandQueue

MOST_AT_ONCE = 2
CONFIRMATION_SECONDS = 10.0
"""An eviction counts as confirmed after this long."""
COUNTED_GRACE_SECONDS = 0.01
"""Pause after an eviction, if the detector counts requests itself."""
REPORTED_GRACE_SECONDS = 0.5
"""Pause if model servers have to report the new room first."""


class FlightState(Enum):
    """BARRED: must not be evicted, or is not connected yet. REVOKED: evicted, but not over yet."""

    BARRED = auto()
    EVICTABLE = auto()
    REVOKED = auto()
    OVER = auto()


class Flight:
    """A request that was sent to a model server, until it is over."""

    __slots__ = ("_reclaimer", "dispatched", "place", "revoke", "revoked_at", "state")

    def __init__(self, reclaimer: Reclaimer, dispatched: DispatchedRequest, number: int) -> None:
        self._reclaimer = reclaimer
        self.dispatched = dispatched
        self.place: tuple[SortKey, int] = ((), number)
        self.state = FlightState.BARRED
        self.revoke: Callable[[], None] | None = None
        self.revoked_at = 0.0

    def connect(self, revoke: Callable[[], None]) -> None:
        """Set the callback that evicts the request at its gateway."""
        self.revoke = revoke
        self._reclaimer.connected(self)

    def ended(self) -> None:
        """The request is over."""
        self._reclaimer.ended(self)


_place = attrgetter("place")


class ReclaimReport(Protocol):
    """Receives evictions."""

    def revoked(self, priority: int, target: float, pending: float) -> None:
        """A request was evicted to free the saturation `target`; evictions will free `pending`."""

    def confirmed(self, outcome: str, seconds: float) -> None:
        """An eviction is `confirmed`, or `unconfirmed` after too long."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The saturation, the bands with their ceilings, and the position of the first closed band."""

    saturation: float
    ceilings: Sequence[float]
    bands: Sequence[BandQueue]
    blocked: int

    def wanting(self, victim_priority: int) -> tuple[BandQueue, float] | None:
        """The first closed band above the victim with a waiting request, and its ceiling; bands with ceiling 0 are never served."""
        for band, ceiling in zip(self.bands[self.blocked :], self.ceilings[self.blocked :], strict=True):
            if band.priority <= victim_priority:
                return None
            if band and ceiling > 0 and self.saturation >= ceiling:
                return band, ceiling
        return None


class Reclaimer:
    """Tracks requests in flight, and evicts a few at a time."""

    def __init__(
        self, policies: BoundEviction, access: Access, clock: Callable[[], float], report: ReclaimReport, *, is_counted_here: bool
    ) -> None:
        """`is_counted_here`: see `PoolSaturation`."""
        self.in_flight = 0
        self._access = access
        self._clock = clock
        self._report = report
        self._numbers = 0
        self._evictable: list[Flight] = []
        self._revoked: set[Flight] = set()
        self._pending = 0.0
        self._paused_until = -math.inf
        self.reconfigure(policies, is_counted_here=is_counted_here)

    def reconfigure(self, policies: BoundEviction, *, is_counted_here: bool) -> None:
        """Use other policies for new requests."""
        self._policies = policies
        self._grace_seconds = COUNTED_GRACE_SECONDS if is_counted_here else REPORTED_GRACE_SECONDS

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight:
        """Track a request to a model server."""
        self._numbers += 1
        self.in_flight += 1
        return Flight(self, DispatchedRequest(request, endpoint, self._clock()), self._numbers)

    def connected(self, flight: Flight) -> None:
        """See `Flight.connect`."""
        is_evictable, sort_key = self._policies.is_evictable, self._policies.sort_key
        if flight.state is FlightState.BARRED and checked_evictable(is_evictable, is_evictable.run(self._access, flight.dispatched)):
            flight.place = checked_key(sort_key, sort_key.run(self._access, flight.dispatched)), flight.place[1]
            flight.state = FlightState.EVICTABLE
            insort(self._evictable, flight, key=_place)

    def ended(self, flight: Flight) -> None:
        """See `Flight.ended`."""
        if flight.state is FlightState.OVER:
            return
        self.in_flight -= 1
        if flight.state is FlightState.REVOKED:
            self._confirm(flight, "confirmed")
        elif flight.state is FlightState.EVICTABLE:
            del self._evictable[bisect_left(self._evictable, flight.place, key=_place)]
        flight.state = FlightState.OVER
        flight.revoke = None

    def reclaim(self, demand: Demand) -> None:
        """Evict for the highest closed band with a waiting request, unless earlier evictions are still to be confirmed."""
        now = self._clock()
        for flight in [each for each in self._revoked if now - each.revoked_at >= CONFIRMATION_SECONDS]:
            self._confirm(flight, "unconfirmed")
            flight.state = FlightState.BARRED
        if self._revoked or now < self._paused_until or not self._evictable:
            return
        wanting = demand.wanting(self._evictable[0].dispatched.request.priority)
        if wanting is None:
            return
        band, ceiling = wanting
        self._pending = 0.0
        target = demand.saturation - ceiling
        freed_by_each = demand.saturation / max(self.in_flight, 1)
        for _ in range(_victims(target, freed_by_each)):
            if not self._evictable or self._evictable[0].dispatched.request.priority >= band.priority:
                return
            self._pending += freed_by_each
            self._revoke(self._evictable.pop(0), now, target)

    def _revoke(self, flight: Flight, now: float, target: float) -> None:
        flight.state = FlightState.REVOKED
        flight.revoked_at = now
        self._revoked.add(flight)
        self._report.revoked(flight.dispatched.request.priority, target, self._pending)
        assert flight.revoke is not None
        flight.revoke()

    def _confirm(self, flight: Flight, outcome: str) -> None:
        now = self._clock()
        self._revoked.discard(flight)
        self._paused_until = now + self._grace_seconds
        self._report.confirmed(outcome, now - flight.revoked_at)


def _victims(missing: float, freed_by_each: float) -> int:
    """The number of requests to evict: at least one, at most `MOST_AT_ONCE`."""
    if not math.isfinite(missing):
        return MOST_AT_ONCE
    return min(MOST_AT_ONCE, max(1, math.ceil(missing / freed_by_each))) if freed_by_each > 0 else 1
