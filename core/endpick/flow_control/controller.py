"""Flow control itself: takes requests in, lets them go one by one as the pool has room, and ends the waiting of others."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from endpick.api.access import Access
from endpick.api.request import InferenceRequest
from endpick.flow_control.bands import Bands
from endpick.flow_control.limits import Regime, Rules
from endpick.flow_control.queues import BandQueue, Entry, FlowQueue, put
from endpick.flow_control.reclaim import Demand, Reclaimer
from endpick.flow_control.report import Report
from endpick.flow_control.saturation import Pool, PoolSaturation, Reading
from endpick.flow_control.states import EntryEvent, EntryState, outcome_of


class FlowController:
    """One for a process; no event loop, no tasks: who runs it calls `attempt` and `sweep`.

    A request that is let go is scheduled before `attempt` returns, as far as no producer has to wait, so that it counts before the next.
    """

    def __init__(self, rules: Rules, pool: Pool, access: Access, clock: Callable[[], float], report: Report) -> None:
        """Nothing waits yet.

        Args:
            rules: What the configuration says.
            pool: Where the endpoints are.
            access: What the detector's reads are judged by.
            clock: Monotonic seconds; one that jumps back is taken to stand still.
            report: Told what happens.
        """
        self._clock = clock
        self._now = clock()
        self._pool = pool
        self._access = access
        self._report = report
        self._arrivals = 0
        self._ending = False
        self._noted: Reading | None = None
        """Which reading was reported last."""
        self.bands = Bands(rules, self._now)
        self.saturation = PoolSaturation(rules.detector, pool, access, clock)
        self.regime = Regime(self._now)
        self.pool_is_empty()
        self.reclaimer = None if rules.eviction is None else Reclaimer(rules.eviction, rules.detector, self.now, report)
        """Knows the requests in flight; None where none is evicted."""

    def now(self) -> float:
        """Seconds that never go back."""
        now = self._clock()
        if now > self._now:
            self._now = now
        return self._now

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self.bands.requests

    def may_pass(self, request: InferenceRequest, size_bytes: int) -> bool:
        """Whether a request may go on at once: nothing of its priority or above waits, and its band is open. Counted if it may."""
        bands = self.bands
        priority = request.priority
        # `now`, `band` and `read_saturation` without their calls: every request asks this, and nearly all of them pass.
        now = self._clock()
        if now > self._now:
            self._now = now
        else:
            now = self._now
        band = bands.by_priority.get(priority)
        if band is None:
            band = bands.band(priority, now)
        if bands.requests:
            highest = bands.highest_waiting()
            if highest is not None and highest >= priority:
                return False
            if not bands.has_room_for(band, size_bytes):
                return False
        elif size_bytes > band.rules.max_bytes or size_bytes > bands.rules.max_bytes > 0:
            return False
        reading = self.saturation.read()
        if reading is not self._noted:
            self._note(reading)
        saturation, priorities = reading.effective, bands.priorities
        if reading.is_empty or saturation >= bands.rules.usage_limit.ceilings(saturation, priorities)[priorities.index(priority)]:
            return False
        band._idle_since = now
        if band.rules.fairness.counts_dispatches:
            self._count_passing(band, self._entry(request, size_bytes, now, None))
        self._report.passed(request)
        return True

    def offer(self, request: InferenceRequest, size_bytes: int, told: Callable[[Entry, EntryEvent], None]) -> tuple[Entry, EntryEvent]:
        """Have a request wait; `told` is called once when its waiting ends.

        Returns:
            The entry, and what became of it: QUEUED, or NO_ROOM or SHUT_DOWN, and then `told` is not called.
        """
        started = perf_counter()
        now = self.now()
        entry = self._entry(request, size_bytes, now, told)
        band = self.bands.band(request.priority, now)
        band._idle_since = now
        if self._ending or not self.bands.has_room_for(band, size_bytes):
            event = EntryEvent.SHUT_DOWN if self._ending else EntryEvent.NO_ROOM
            entry.enter(event)
            self._report.refused(entry, outcome_of(event, self.pool_is_empty()))
            return entry, event
        entry.enter(EntryEvent.QUEUED)
        self.bands.add(band, entry)
        self._report.queued(entry, band, self.bands, perf_counter() - started)
        return entry, EntryEvent.QUEUED

    def leave(self, entry: Entry) -> None:
        """The client of an entry is gone; without effect on one that waits no more."""
        if entry.state is EntryState.WAITING:
            self._end(entry, EntryEvent.CLIENT_LEFT)

    def attempt(self) -> bool:
        """Let one request go, if the pool has room for it and the policies choose one; whether one went."""
        if not self.bands.requests:
            return False
        started = perf_counter()
        chosen = self._chosen()
        if chosen is not None:
            band, flow = self._remove(chosen, EntryEvent.CHOSEN)
            band.rules.fairness.dispatched(band, flow, chosen)
        self._report.attempted(perf_counter() - started)
        if chosen is None:
            return False
        self._tell(chosen, EntryEvent.CHOSEN)
        return True

    def sweep(self, most: int) -> int:
        """End the waiting of up to `most` that waited too long, and forget bands that are idle; how many were told."""
        now = self.now()
        self.pool_is_empty()
        told = 0
        for band in list(self.bands):
            while told < most and (entry := band.oldest) is not None and self.regime.is_due(entry.enqueued_at, self.bands.rules, now):
                self._end(entry, EntryEvent.EXPIRED)
                told += 1
        self.bands.forget_idle(now)
        return told

    def shed(self, count: int, below: int | None) -> int:
        """Tell up to `count` of the requests that came last, of the lowest bands first; how many were told.

        Args:
            count: How many.
            below: Only requests of lower priorities than this; None for any.
        """
        told = 0
        for band in reversed(list(self.bands)):
            if below is not None and band.priority >= below:
                break
            while told < count and (entry := band.newest) is not None:
                self._end(entry, EntryEvent.SHED)
                told += 1
        return told

    def shut_down(self) -> None:
        """From now on tell all that would have to wait that it is over; for those that wait already there is `end_some`."""
        self._ending = True

    def end_some(self, most: int, event: EntryEvent) -> int:
        """End the waiting of up to `most`, of the highest bands and of those that came first, with this event; how many there were."""
        count = 0
        for band in list(self.bands):
            while count < most and (entry := band.oldest) is not None:
                self._end(entry, event)
                count += 1
        return count

    def reconfigure(self, rules: Rules) -> None:
        """Go on with other rules: what waits keeps its place in time. For those without room there is `trim`."""
        self.bands.follow(rules, self.now())
        self.saturation = PoolSaturation(rules.detector, self._pool, self._access, self._clock)
        if rules.eviction is None:
            self.reclaimer = None
        elif self.reclaimer is None:
            self.reclaimer = Reclaimer(rules.eviction, rules.detector, self.now, self._report)
        else:
            self.reclaimer.follow(rules.eviction, rules.detector)

    def trim(self, most: int) -> int:
        """Tell some of those for which new rules have no room; how many were told.

        Of each band that has too many, and of the lowest where all together are too many, those that came last.
        """
        told = 0
        for band in reversed(list(self.bands)):
            while told < most and (self.bands.is_over or band.is_over) and (entry := band.newest) is not None:
                self._end(entry, EntryEvent.NO_ROOM)
                told += 1
        return told

    def pool_is_empty(self) -> bool:
        """Whether there are no endpoints; takes note of the regime."""
        is_empty = not self._pool.generation.endpoints
        self.regime.observe(is_empty, self.now())
        return is_empty

    def read_saturation(self) -> Reading:
        """How full the pool is; takes note of the regime."""
        reading = self.saturation.read()
        if reading is not self._noted or reading.is_empty is not self.regime.is_empty:
            self._note(reading)
        return reading

    def _note(self, reading: Reading) -> None:
        self._noted = reading
        self._report.read(reading)
        self.regime.observe(reading.is_empty, self.now())

    def _chosen(self) -> Entry | None:
        """Who goes next: of the highest band that is open, as its policies say. A band that is closed closes all below it."""
        reading = self.read_saturation()
        if reading.is_empty:
            return None
        ceilings = self.bands.rules.usage_limit.ceilings(reading.effective, self.bands.priorities)
        for position, (band, ceiling) in enumerate(zip(self.bands, ceilings, strict=True)):
            if reading.effective >= ceiling:
                if self.reclaimer is not None:
                    self.reclaimer.reclaim(Demand(reading.effective, ceilings, tuple(self.bands), position))
                return None
            if band and (entry := band.choose()) is not None:
                return entry
        return None

    def _count_passing(self, band: BandQueue, entry: Entry) -> None:
        """Tell the fairness policy of a request that passes, as of one that waited for no time."""
        entry.enter(EntryEvent.QUEUED)
        self.bands.add(band, entry)
        band, flow = self.bands.remove(entry, entry.enqueued_at)
        entry.enter(EntryEvent.CHOSEN)
        band.rules.fairness.dispatched(band, flow, entry)

    def _entry(self, request: InferenceRequest, size_bytes: int, now: float, told: Callable[[Entry, EntryEvent], None] | None) -> Entry:
        self._arrivals += 1
        return Entry(request, size_bytes, self._arrivals, now, self.bands.rules.ttl_seconds, (), told)

    def _end(self, entry: Entry, event: EntryEvent) -> None:
        self._remove(entry, event)
        if event is not EntryEvent.CLIENT_LEFT:
            self._tell(entry, event)

    def _remove(self, entry: Entry, event: EntryEvent) -> tuple[BandQueue, FlowQueue]:
        now = self.now()
        entry.enter(event)
        band, flow = self.bands.remove(entry, now)
        self._report.left(entry, band, self.bands, outcome_of(event, self.regime.is_empty), now - entry.enqueued_at)
        return band, flow

    def _tell(self, entry: Entry, event: EntryEvent) -> None:
        told = entry.told
        put(entry, "told", None)
        assert told is not None
        told(entry, event)
