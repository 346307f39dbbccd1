"""Flow control without an event loop: queues, dispatches, expires and evicts requests."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import attrgetter
from time import perf_counter
from typing import Protocol

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.flow_control import DispatchedRequest, SortKey, WaitingRequest
from endpick.api.request import InferenceRequest
from endpick.flow_control.policies import (
    BoundEviction,
    BoundFlowControl,
    Pool,
    PoolSaturation,
    Reading,
    checked_ceilings,
    checked_key,
)
from endpick.flow_control.queues import BandQueue, Bands, Entry, FlowQueue, Outcome, WaitEnd, outcome_of
from endpick.host.boundary import Step

MOST_AT_ONCE = 2
CONFIRMATION_SECONDS = 10.0
COUNTED_GRACE_SECONDS = 0.01  # pause after an eviction if the detector counts requests itself
REPORTED_GRACE_SECONDS = 0.5  # model servers report freed capacity later


class FlightState(Enum):
    """BARRED is not evictable or not connected yet; REVOKED is evicted but still running."""

    BARRED = auto()
    EVICTABLE = auto()
    REVOKED = auto()
    OVER = auto()


class Flight:
    """A request in flight to a model server, which the reclaimer may evict."""

    __slots__ = ("_reclaimer", "dispatched", "place", "revoke", "revoked_at", "state")

    def __init__(self, reclaimer: Reclaimer, dispatched: DispatchedRequest, number: int) -> None:
        self._reclaimer = reclaimer
        self.dispatched = dispatched
        self.place: tuple[SortKey, int] = ((), number)
        self.state = FlightState.BARRED
        self.revoke: Callable[[], None] | None = None
        self.revoked_at = 0.0

    def connect(self, revoke: Callable[[], None]) -> None:
        """Register `revoke`, which the reclaimer calls to evict the request."""
        self.revoke = revoke
        self._reclaimer.connected(self)

    def ended(self) -> None:
        """Stop tracking the request. Called when its response ends."""
        self._reclaimer.ended(self)


_place = attrgetter("place")


class Report(Protocol):
    """Receives the events of flow control, for metrics. All durations are in seconds."""

    def passed(self, request: InferenceRequest) -> None:
        """Called for a request that is dispatched without a wait."""

    def queued(self, entry: Entry, band: BandQueue, bands: Bands, seconds: float) -> None:
        """Called after a request was queued, which took `seconds`."""

    def left(self, entry: Entry, band: BandQueue, bands: Bands, outcome: Outcome, waited_seconds: float) -> None:
        """Called when a wait ends, with its outcome."""

    def refused(self, entry: Entry, outcome: Outcome) -> None:
        """Called for a request that cannot be queued."""

    def attempted(self, seconds: float) -> None:
        """Called after a dispatch cycle, whether or not it dispatched a request."""

    def read(self, reading: Reading) -> None:
        """Called with a new measurement of the saturation."""

    def revoked(self, priority: int, target: float, pending: float) -> None:
        """Called after an eviction, with the saturation to free and to be freed by unconfirmed evictions."""

    def confirmed(self, outcome: str, seconds: float) -> None:
        """Called with `confirmed`, or with `unconfirmed` after `CONFIRMATION_SECONDS`."""


class NullReport(Report):
    """Discards every event, for pickers without metrics."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The state of all bands when those from position `blocked` on are closed."""

    saturation: float
    ceilings: Sequence[float]
    bands: Sequence[BandQueue]
    blocked: int

    def wanting(self, victim_priority: int) -> tuple[BandQueue, float] | None:
        """Return the first closed, non-empty band above the victim and its ceiling. A ceiling of 0 is never served."""
        for band, ceiling in zip(self.bands[self.blocked :], self.ceilings[self.blocked :], strict=True):
            if band.priority <= victim_priority:
                return None
            if band and ceiling > 0 and self.saturation >= ceiling:
                return band, ceiling
        return None


class Reclaimer:
    """Evicts requests in flight, a few at a time, for waiting requests of higher priority."""

    def __init__(
        self, policies: BoundEviction, access: Access, clock: Callable[[], float], report: Report, *, is_counted_here: bool
    ) -> None:
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
        """Use other policies for requests that are tracked from now on."""
        self._policies = policies
        self._grace_seconds = COUNTED_GRACE_SECONDS if is_counted_here else REPORTED_GRACE_SECONDS

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight:
        """Return the flight of a request that is sent to `endpoint` now."""
        self._numbers += 1
        self.in_flight += 1
        return Flight(self, DispatchedRequest(request, endpoint, self._clock()), self._numbers)

    def connected(self, flight: Flight) -> None:
        """Make the flight evictable if the eviction filter allows it. Called by `Flight`."""
        is_evictable, sort_key = self._policies.is_evictable, self._policies.sort_key
        if flight.state is FlightState.BARRED and is_evictable.run(self._access, flight.dispatched) is True:
            flight.place = checked_key(sort_key, sort_key.run(self._access, flight.dispatched)), flight.place[1]
            flight.state = FlightState.EVICTABLE
            insort(self._evictable, flight, key=_place)

    def ended(self, flight: Flight) -> None:
        """Forget the flight, and confirm its eviction. Called by `Flight`; idempotent."""
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
        """Evict requests for the highest closed band, unless earlier evictions are unconfirmed."""
        now = self._clock()
        for flight in [revoked for revoked in self._revoked if now - revoked.revoked_at >= CONFIRMATION_SECONDS]:
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
    if not math.isfinite(missing):
        return MOST_AT_ONCE
    return min(MOST_AT_ONCE, max(1, math.ceil(missing / freed_by_each))) if freed_by_each > 0 else 1


class FlowController:
    """The queues of flow control. While `waiting` is not 0, the caller runs `dispatch` and `expire`."""

    def __init__(
        self, rules: BoundFlowControl, detector: Step[float], pool: Pool, access: Access, clock: Callable[[], float], report: Report
    ) -> None:
        self._pool = pool
        self._access = access
        self._clock = clock
        self._report = report
        self._arrivals = 0
        self._is_shut_down = False
        self._pool_was_empty = False
        self._pool_changed_at = clock()
        self._reported: Reading | None = None
        self.bands = Bands(rules, access, clock())
        self.saturation = PoolSaturation(detector, pool, access, clock)
        self.reclaimer: Reclaimer | None = None
        self._make_reclaimer()
        self.pool_is_empty()

    @property
    def waiting(self) -> int:
        """The number of requests waiting in all bands."""
        return self.bands.requests

    def may_pass(self, request: InferenceRequest) -> bool:
        """Return True, and count the request, if its band is open and no request of this priority or above waits."""
        bands, now = self.bands, self._clock()
        band = bands.band(request.priority, now)
        highest = bands.highest_waiting()
        if (highest is not None and highest >= request.priority) or not bands.has_room_for(band, request.size_bytes):
            return False
        reading = self.read_saturation()
        if reading.is_empty or reading.effective >= self._ceilings(reading)[bands.priorities.index(request.priority)]:
            return False
        band.used_at = now
        if band.rules.fairness.dispatched is not None:
            self._count_as_dispatched(band, self._entry(request, now, lambda _entry, _end: None))
        self._report.passed(request)
        return True

    def offer(self, request: InferenceRequest, on_end: Callable[[Entry, WaitEnd], None]) -> Entry | WaitEnd:
        """Queue a request, or return the reason not to. `on_end` is called when the wait ends, except by `leave`."""
        started = perf_counter()
        now = self._clock()
        entry = self._entry(request, now, on_end)
        band = self.bands.band(request.priority, now)
        band.used_at = now
        if self._is_shut_down or not self.bands.has_room_for(band, request.size_bytes):
            end = WaitEnd.SHUT_DOWN if self._is_shut_down else WaitEnd.NO_ROOM
            self._report.refused(entry, outcome_of(end, self.pool_is_empty()))
            return end
        self.bands.add(band, entry)
        self._report.queued(entry, band, self.bands, perf_counter() - started)
        return entry

    def leave(self, entry: Entry) -> None:
        """End the wait of a client that disconnected. Does nothing if the wait has ended."""
        if entry.band is not None:
            self._remove(entry, WaitEnd.CLIENT_LEFT)

    def dispatch(self) -> bool:
        """Dispatch the next request if the pool has capacity; returns True if it did."""
        if not self.bands.requests:
            return False
        started = perf_counter()
        entry = self._next()
        if entry is not None:
            band, flow = self._remove(entry, WaitEnd.DISPATCHED)
            band.dispatched(flow, entry.waiting)
        self._report.attempted(perf_counter() - started)
        if entry is None:
            return False
        entry.on_end(entry, WaitEnd.DISPATCHED)
        return True

    def expire(self) -> int:
        """End overdue waits and drop idle bands; returns the number of expired requests."""
        now = self._clock()
        is_empty = self.pool_is_empty()
        without_endpoints = self.bands.rules.settings.no_endpoint_ttl_seconds
        expired = 0
        for band in tuple(self.bands):
            both = band.rules.ttl_seconds, without_endpoints
            limit = without_endpoints if is_empty else band.rules.ttl_seconds
            longest = max(both) if all(both) else 0.0  # bounds the wait when the pool keeps emptying and filling
            while (entry := band.oldest) is not None:
                since = entry.waiting.enqueued_at
                is_due = limit and now - max(since, self._pool_changed_at) >= limit
                if not is_due and not (longest and now - since >= longest):
                    break
                self._end(entry, WaitEnd.EXPIRED)
                expired += 1
        self.bands.drop_idle(now)
        return expired

    def shed(self) -> int:
        """End the waits of requests with negative priority; returns their number."""
        entries = [entry for band in self.bands if band.priority < 0 for entry in band.entries]
        for entry in entries:
            self._end(entry, WaitEnd.SHED)
        return len(entries)

    def end_all(self, end: WaitEnd) -> int:
        """End every wait, by priority and arrival; returns the number of requests."""
        entries = [entry for band in self.bands for entry in band.entries]
        for entry in entries:
            self._end(entry, end)
        return len(entries)

    def shut_down(self) -> int:
        """End every wait and refuse later requests; returns the number that waited."""
        self._is_shut_down = True
        return self.end_all(WaitEnd.SHUT_DOWN)

    def reconfigure(self, rules: BoundFlowControl, detector: Step[float]) -> None:
        """Use the rules of a reload; refuses the newest requests of the lowest bands until the rest fits."""
        self.bands.reconfigure(rules, self._clock())
        self.saturation = PoolSaturation(detector, self._pool, self._access, self._clock)
        self._make_reclaimer()
        for band in reversed(tuple(self.bands)):
            while (self.bands.is_over or band.is_over) and (entry := band.newest) is not None:
                self._end(entry, WaitEnd.NO_ROOM)

    def pool_is_empty(self) -> bool:
        """Return True without endpoints. A change restarts the time limit of every wait."""
        is_empty = not self._pool.generation.endpoints
        if is_empty is not self._pool_was_empty:
            self._pool_was_empty, self._pool_changed_at = is_empty, self._clock()
        return is_empty

    def read_saturation(self) -> Reading:
        """Return the saturation of the pool, and report a new measurement."""
        reading = self.saturation.read()
        if reading is not self._reported:
            self._reported = reading
            self._report.read(reading)
            self.pool_is_empty()
        return reading

    def _ceilings(self, reading: Reading) -> Sequence[float]:
        step, priorities = self.bands.rules.ceilings, self.bands.priorities
        return checked_ceilings(step, len(priorities), step.run(self._access, reading.effective, priorities))

    def _next(self) -> Entry | None:
        # A closed band closes all bands below it.
        reading = self.read_saturation()
        if reading.is_empty:
            return None
        ceilings = self._ceilings(reading)
        for position, (band, ceiling) in enumerate(zip(self.bands, ceilings, strict=True)):
            if reading.effective >= ceiling:
                if self.reclaimer is not None:
                    self.reclaimer.reclaim(Demand(reading.effective, ceilings, tuple(self.bands), position))
                return None
            if band and (entry := band.choose()) is not None:
                return entry
        return None

    def _count_as_dispatched(self, band: BandQueue, entry: Entry) -> None:
        self.bands.add(band, entry)
        _, flow = self.bands.remove(entry, entry.waiting.enqueued_at)
        band.dispatched(flow, entry.waiting)

    def _entry(self, request: InferenceRequest, now: float, on_end: Callable[[Entry, WaitEnd], None]) -> Entry:
        self._arrivals += 1
        ttl_seconds = self.bands.rules.of_band(request.priority).ttl_seconds
        return Entry(WaitingRequest(request, request.size_bytes, self._arrivals, now, ttl_seconds), on_end)

    def _end(self, entry: Entry, end: WaitEnd) -> None:
        self._remove(entry, end)
        entry.on_end(entry, end)

    def _remove(self, entry: Entry, end: WaitEnd) -> tuple[BandQueue, FlowQueue]:
        now = self._clock()
        band, flow = self.bands.remove(entry, now)
        self._report.left(entry, band, self.bands, outcome_of(end, self._pool_was_empty), now - entry.waiting.enqueued_at)
        return band, flow

    def _make_reclaimer(self) -> None:
        policies, is_counted_here = self.bands.rules.eviction, self.saturation.is_counted_here
        if policies is None:
            self.reclaimer = None
        elif self.reclaimer is None:
            self.reclaimer = Reclaimer(policies, self._access, self._clock, self._report, is_counted_here=is_counted_here)
        else:
            self.reclaimer.reconfigure(policies, is_counted_here=is_counted_here)
