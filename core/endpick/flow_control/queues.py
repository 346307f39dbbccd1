"""Flows of requests, bands of flows, and all bands."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from enum import Enum, StrEnum, auto
from operator import attrgetter

from endpick.api.access import Access
from endpick.api.flow_control import SortKey, WaitingRequest
from endpick.flow_control.policies import BandRules, BoundFlowControl, checked_key
from endpick.host.boundary import Fault, Step

BAND_IDLE_SECONDS = 600.0  # for unlisted bands


class Outcome(StrEnum):
    """The outcomes of waits, as the values of llm-d's metric label."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"
    NOT_YET_FINALIZED = "NotYetFinalized"


class WaitEnd(Enum):
    """The reason why a wait ended or was refused."""

    DISPATCHED = auto()
    NO_ROOM = auto()
    EXPIRED = auto()
    CLIENT_LEFT = auto()
    SHUT_DOWN = auto()
    SHED = auto()


def outcome_of(end: WaitEnd, pool_is_empty: bool) -> Outcome:
    """Return the outcome that metrics count for the end of a wait."""
    if pool_is_empty and end in _WITHOUT_ENDPOINTS:
        return _WITHOUT_ENDPOINTS[end]
    return _OUTCOMES[end]


_OUTCOMES = {
    WaitEnd.DISPATCHED: Outcome.DISPATCHED,
    WaitEnd.NO_ROOM: Outcome.REJECTED_CAPACITY,
    WaitEnd.EXPIRED: Outcome.EVICTED_TTL,
    WaitEnd.CLIENT_LEFT: Outcome.EVICTED_CONTEXT_CANCELLED,
    WaitEnd.SHUT_DOWN: Outcome.EVICTED_OTHER,
    WaitEnd.SHED: Outcome.EVICTED_OTHER,
}
_WITHOUT_ENDPOINTS = {WaitEnd.NO_ROOM: Outcome.REJECTED_NO_ENDPOINTS, WaitEnd.EXPIRED: Outcome.EVICTED_NO_ENDPOINTS}


class Entry:
    """A request in the queues, with its band and flow until the wait ends."""

    __slots__ = ("band", "flow", "on_end", "place", "waiting")

    def __init__(self, waiting: WaitingRequest, on_end: Callable[[Entry, WaitEnd], None]) -> None:
        self.waiting = waiting
        self.on_end = on_end
        self.place: tuple[SortKey, int] = ((), waiting.arrival)
        self.flow: FlowQueue | None = None
        self.band: BandQueue | None = None


_place = attrgetter("place")


class FlowQueue:
    """The waiting requests of one fairness id, sorted by key and arrival; policies see it as `Flow`."""

    __slots__ = ("_entries", "id", "size_bytes")

    def __init__(self, flow_id: str) -> None:
        self.id = flow_id
        self.size_bytes = 0
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def head(self) -> WaitingRequest | None:
        return self._entries[0].waiting if self._entries else None

    @property
    def first(self) -> Entry:
        """The entry of `head`; the flow must not be empty."""
        return self._entries[0]

    def add(self, entry: Entry) -> bool:
        """Insert an entry; returns True if it is the new head."""
        insort(self._entries, entry, key=_place)
        self.size_bytes += entry.waiting.size_bytes
        return self._entries[0] is entry

    def remove(self, entry: Entry) -> bool:
        """Remove an entry; returns True if it was the head."""
        position = bisect_left(self._entries, entry.place, key=_place)
        del self._entries[position]
        self.size_bytes -= entry.waiting.size_bytes
        return position == 0


class BandQueue:
    """The flows of one priority; policies see it as `Band`."""

    __slots__ = ("_access", "_entries", "_flows", "_missed_changes", "priority", "private", "rules", "size_bytes", "used_at")

    def __init__(self, priority: int, rules: BandRules, access: Access, now: float) -> None:
        self.priority = priority
        self.rules = rules
        self.private: dict[str, object] = {}
        self.size_bytes = 0
        self.used_at = now
        self._access = access
        self._flows: dict[str, FlowQueue] = {}
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._missed_changes = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def flows(self) -> Collection[FlowQueue]:
        return self._flows.values()

    def flow(self, flow_id: str) -> FlowQueue | None:
        return self._flows.get(flow_id)

    @property
    def entries(self) -> Collection[Entry]:
        """All entries, in order of arrival."""
        return self._entries.values()

    @property
    def oldest(self) -> Entry | None:
        """The entry that arrived first, or None."""
        return next(iter(self._entries.values()), None)

    @property
    def newest(self) -> Entry | None:
        """The entry that arrived last, or None."""
        return next(reversed(self._entries.values()), None)

    def has_room_for(self, size_bytes: int) -> bool:
        """Return True if a request of this size fits the limits of the band."""
        return self.size_bytes + size_bytes <= self.rules.max_bytes and len(self._entries) < self.rules.max_requests

    @property
    def is_over(self) -> bool:
        """True if the band exceeds its limits, after a reload has lowered them."""
        return self.size_bytes > self.rules.max_bytes or len(self._entries) > self.rules.max_requests

    def add(self, entry: Entry) -> None:
        """Queue an entry that arrived last, and notify the fairness policy of a new head."""
        step, waiting = self.rules.ordering, entry.waiting
        key = checked_key(step, step.run(self._access, waiting))
        if key != waiting.key:
            entry.waiting = waiting = replace(waiting, key=key)
        flow_id = waiting.request.fairness_id
        flow = self._flows.get(flow_id)
        if flow is None:
            flow = self._flows[flow_id] = FlowQueue(flow_id)
        entry.place, entry.flow, entry.band = (key, waiting.arrival), flow, self
        self._entries[waiting.arrival] = entry
        self.size_bytes += waiting.size_bytes
        if flow.add(entry):
            self._notify(self.rules.fairness.flow_changed, flow)

    def remove(self, entry: Entry) -> FlowQueue:
        """Remove an entry, and notify the fairness policy of a new head; returns the entry's flow."""
        flow = entry.flow
        assert flow is not None
        entry.flow = entry.band = None
        del self._entries[entry.waiting.arrival]
        self.size_bytes -= entry.waiting.size_bytes
        was_head = flow.remove(entry)
        if not flow:
            del self._flows[flow.id]
        if was_head:
            self._notify(self.rules.fairness.flow_changed, flow)
        return flow

    def dispatched(self, flow: FlowQueue, waiting: WaitingRequest) -> None:
        """Notify the fairness policy that a request of the flow was dispatched."""
        self._notify(self.rules.fairness.dispatched, flow, waiting)

    def choose(self) -> Entry | None:
        """Return the entry that the fairness policy chooses, or None; after a fault the oldest."""
        step = self.rules.fairness.choose
        if self._missed_changes and not step.breaker.seconds_left:
            self._missed_changes = False
            self.private = {}
            for flow in tuple(self._flows.values()):
                self._notify(self.rules.fairness.flow_changed, flow)
        answer = step.run(self._access, self)
        if answer is None:
            return None
        if isinstance(answer, FlowQueue) and self._flows.get(answer.id) is answer:
            return answer.first
        if not isinstance(answer, Fault):
            step.fault(f"chose {type(answer).__name__}, which is no flow of the band in which something waits")
        return self.oldest

    def _notify(self, step: Step[object] | None, *arguments: object) -> None:
        if step is not None:
            if step.breaker.seconds_left:
                self._missed_changes = True
            step.run(self._access, self, *arguments)


class Bands:
    """The bands of all priorities, highest first, and their totals."""

    def __init__(self, rules: BoundFlowControl, access: Access, now: float) -> None:
        self.rules = rules
        self.size_bytes = 0
        self.requests = 0
        self._access = access
        self._by_priority: dict[int, BandQueue] = {}
        self.priorities: tuple[int, ...] = ()  # descending
        self._make_listed(now)

    def __iter__(self) -> Iterator[BandQueue]:
        return map(self._by_priority.__getitem__, self.priorities)

    def band(self, priority: int, now: float) -> BandQueue:
        """Return the band of a priority, made if it does not exist."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = BandQueue(priority, self.rules.of_band(priority), self._access, now)
            self._sort()
        return band

    def highest_waiting(self) -> int | None:
        """Return the highest priority with waiting requests, or None."""
        return next((band.priority for band in self if band), None) if self.requests else None

    @property
    def is_over(self) -> bool:
        """True if the totals exceed the limits, after a reload has lowered them."""
        settings = self.rules.settings
        return self.size_bytes > settings.max_bytes > 0 or self.requests > settings.max_requests > 0

    def has_room_for(self, band: BandQueue, size_bytes: int) -> bool:
        """Return True if a request of this size fits the limits of the band and of all bands."""
        settings = self.rules.settings
        if settings.max_bytes and self.size_bytes + size_bytes > settings.max_bytes:
            return False
        if settings.max_requests and self.requests >= settings.max_requests:
            return False
        return band.has_room_for(size_bytes)

    def add(self, band: BandQueue, entry: Entry) -> None:
        """Queue an entry in its band, and update the totals."""
        band.add(entry)
        self.size_bytes += entry.waiting.size_bytes
        self.requests += 1

    def remove(self, entry: Entry, now: float) -> tuple[BandQueue, FlowQueue]:
        """Remove an entry, and update the totals; returns the entry's band and flow."""
        band = entry.band
        assert band is not None
        flow = band.remove(entry)
        band.used_at = now
        self.size_bytes -= entry.waiting.size_bytes
        self.requests -= 1
        return band, flow

    def drop_idle(self, now: float, idle_seconds: float = BAND_IDLE_SECONDS) -> None:
        """Drop empty bands of unlisted priorities that were unused for `idle_seconds`."""
        listed = {0, *self.rules.bands}
        for band in tuple(self):
            if not band and band.priority not in listed and now - band.used_at >= idle_seconds:
                del self._by_priority[band.priority]
        self._sort()

    def reconfigure(self, rules: BoundFlowControl, now: float) -> None:
        """Use the rules of a reload. Bands with the same policies and time limit keep their order."""
        self.rules = rules
        for old in tuple(self):
            of_band = rules.of_band(old.priority)
            if old.rules.orders_as(of_band):
                old.rules = of_band
                continue
            new = self._by_priority[old.priority] = BandQueue(old.priority, of_band, self._access, now)
            for entry in old.entries:
                entry.waiting = replace(entry.waiting, ttl_seconds=of_band.ttl_seconds)
                new.add(entry)
        self._make_listed(now)
        self.drop_idle(now, 0.0)

    def _make_listed(self, now: float) -> None:
        for priority in {0, *self.rules.bands} - self._by_priority.keys():
            self._by_priority[priority] = BandQueue(priority, self.rules.of_band(priority), self._access, now)
        self._sort()

    def _sort(self) -> None:
        self.priorities = tuple(sorted(self._by_priority, reverse=True))
