"""Room for the important: evicts requests in flight that may be, when a band is closed that stands above them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Protocol

from endpick.api.endpoint import Endpoint
from endpick.api.flow_control import DispatchedRequest, SortKey
from endpick.api.request import InferenceRequest
from endpick.flow_control.calls import Detector, Eviction
from endpick.flow_control.queues import BandQueue

MOST_AT_ONCE = 2
CONFIRMATION_SECONDS = 10.0
"""An eviction whose request has not ended after this long counts as confirmed."""
COUNTED_GRACE_SECONDS = 0.01
"""How long the room that an eviction makes counts as on its way, where the detector counts requests itself."""
REPORTED_GRACE_SECONDS = 0.5
"""The same where model servers have to report it first."""


class FlightState(IntEnum):
    """Where a request in flight stands."""

    BARRED = 0
    """It may not be evicted: the policy says so, or the gateway has not been told yet where it goes."""
    EVICTABLE = 1
    REVOKED = 2
    """The gateway was told to answer its client; its stream has not ended."""
    OVER = 3


class Flight:
    """A request that was sent to a model server, until it is over."""

    __slots__ = ("_reclaimer", "dispatched", "key", "number", "revoke", "revoked_at", "state")

    def __init__(self, reclaimer: Reclaimer, dispatched: DispatchedRequest, number: int) -> None:
        self._reclaimer = reclaimer
        self.dispatched = dispatched
        self.number = number
        self.key: SortKey = ()
        self.state = FlightState.BARRED
        self.revoke: Callable[[], None] | None = None
        self.revoked_at = 0.0

    def connect(self, revoke: Callable[[], None]) -> None:
        """From now on its gateway can be told; without this it is never evicted."""
        self.revoke = revoke
        self._reclaimer.connected(self)

    def ended(self) -> None:
        """It is over."""
        self._reclaimer.ended(self)


class ReclaimReport(Protocol):
    """Told of evictions."""

    def revoked(self, priority: int, target: float, pending: float) -> None:
        """A request of that priority is evicted, to make so much room; so much is on its way already."""

    def confirmed(self, outcome: str, seconds: float) -> None:
        """An eviction is `confirmed`, or `unconfirmed` after too long."""


@dataclass(slots=True)
class Demand:
    """What waits without room.

    Attributes:
        saturation: Of the pool.
        ceilings: Of all bands.
        bands: All bands, the highest first.
        blocked: Position of the first band that is closed.
    """

    saturation: float
    ceilings: Sequence[float]
    bands: Sequence[BandQueue]
    blocked: int


class Reclaimer:
    """Keeps the requests in flight, and evicts a few at a time: none while earlier evictions are not confirmed and seen by the detector."""

    def __init__(self, eviction: Eviction, detector: Detector, clock: Callable[[], float], report: ReclaimReport) -> None:
        """`detector` sees the room that an eviction made, sooner or later."""
        self._clock = clock
        self.follow(eviction, detector)
        self._report = report
        self._numbers = 0
        self._heap: list[tuple[SortKey, int]] = []
        self._evictable: dict[int, Flight] = {}
        self._revoked: dict[int, Flight] = {}
        self._cooling_until = -math.inf
        self._pending = 0.0
        self.in_flight = 0
        """Requests that were sent and are not over."""

    def follow(self, eviction: Eviction, detector: Detector) -> None:
        """Ask these from now on, after a reload; requests in flight stay as they are."""
        self._eviction = eviction
        self._grace_seconds = COUNTED_GRACE_SECONDS if detector.counts_requests else REPORTED_GRACE_SECONDS

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight:
        """A request that goes to a model server now."""
        self._numbers += 1
        self.in_flight += 1
        return Flight(self, DispatchedRequest(request, endpoint, self._clock()), self._numbers)

    def connected(self, flight: Flight) -> None:
        """See `Flight.connect`: only now is it worth asking whether it may be evicted."""
        if flight.state is FlightState.BARRED and self._eviction.allows(flight.dispatched):
            flight.key = self._eviction.key(flight.dispatched)
            flight.state = FlightState.EVICTABLE
            self._evictable[flight.number] = flight
            heappush(self._heap, (flight.key, flight.number))

    def ended(self, flight: Flight) -> None:
        """See `Flight.ended`."""
        if flight.state is FlightState.OVER:
            return
        self.in_flight -= 1
        if flight.state is FlightState.REVOKED:
            self._confirm(flight, "confirmed")
        flight.state = FlightState.OVER
        flight.revoke = None
        self._evictable.pop(flight.number, None)
        if len(self._heap) > 2 * len(self._evictable) + 16:
            self._heap = [place for place in self._heap if place[1] in self._evictable]
            heapify(self._heap)

    def reclaim(self, demand: Demand) -> int:
        """Evict what makes room for the highest closed band in which something waits; how many were."""
        now = self._clock()
        for flight in [each for each in self._revoked.values() if now - each.revoked_at >= CONFIRMATION_SECONDS]:
            self._confirm(flight, "unconfirmed")
        if self._revoked or now < self._cooling_until:
            return 0
        self._pending = 0.0
        victim = self._first()
        if victim is None:
            return 0
        wanting = _wanting(demand, victim.dispatched.request.priority)
        if wanting is None:
            return 0
        band, ceiling = wanting
        target = demand.saturation - ceiling
        credit = demand.saturation / max(self.in_flight, 1)
        count = _victims(target - self._pending, credit)
        evicted = 0
        while evicted < count:
            victim = self._first()
            if victim is None or victim.dispatched.request.priority >= band.priority:
                break
            self._revoke(victim, now, target, credit)
            evicted += 1
        return evicted

    def _first(self) -> Flight | None:
        heap = self._heap
        while heap:
            flight = self._evictable.get(heap[0][1])
            if flight is not None and flight.state is FlightState.EVICTABLE:
                return flight
            heappop(heap)
            if flight is not None:
                del self._evictable[flight.number]
        return None

    def _revoke(self, flight: Flight, now: float, target: float, credit: float) -> None:
        del self._evictable[flight.number]
        flight.state = FlightState.REVOKED
        flight.revoked_at = now
        self._revoked[flight.number] = flight
        self._pending += credit
        self._report.revoked(flight.dispatched.request.priority, target, self._pending)
        assert flight.revoke is not None
        flight.revoke()

    def _confirm(self, flight: Flight, outcome: str) -> None:
        now = self._clock()
        del self._revoked[flight.number]
        self._cooling_until = now + self._grace_seconds
        if outcome == "unconfirmed":
            flight.state = FlightState.BARRED
        self._report.confirmed(outcome, now - flight.revoked_at)


def _victims(missing: float, credit: float) -> int:
    """How many requests make the room that is missing, if each makes `credit`: one at least, and the most where it is not finite."""
    if not math.isfinite(missing):
        return MOST_AT_ONCE
    return min(MOST_AT_ONCE, max(1, math.ceil(missing / credit))) if credit > 0 else 1


def _wanting(demand: Demand, victim_priority: int) -> tuple[BandQueue, float] | None:
    """The first closed band above the victim in which something waits, and its ceiling; bands that are never served do not count."""
    for band, ceiling in zip(demand.bands[demand.blocked :], demand.ceilings[demand.blocked :], strict=True):
        if band.priority <= victim_priority:
            return None
        if band and ceiling > 0 and demand.saturation >= ceiling:
            return band, ceiling
    return None
