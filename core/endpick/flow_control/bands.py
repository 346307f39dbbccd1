"""All bands: found and made by priority, bounded in all, and forgotten when they are idle."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.flow_control.limits import BAND_IDLE_SECONDS, Rules
from endpick.flow_control.queues import BandQueue, Entry, FlowQueue, put


class Bands:
    """The bands of a process by priority; entries go in and out here alone, so that the totals are right."""

    __slots__ = ("by_priority", "priorities", "requests", "rules", "size_bytes")

    def __init__(self, rules: Rules, now: float) -> None:
        """The bands that are listed, and that of priority 0, which there always is."""
        self.rules = rules
        self.size_bytes = 0
        """Of all requests that wait."""
        self.requests = 0
        """How many wait."""
        self.priorities: tuple[int, ...] = tuple(sorted({0, *rules.bands}, reverse=True))
        """Of all bands, the highest first."""
        self.by_priority = {priority: BandQueue(priority, rules.of_band(priority), now) for priority in self.priorities}
        """Only to be read; `band` makes what is missing."""

    def __iter__(self) -> Iterator[BandQueue]:
        """All bands, the highest first."""
        return map(self.by_priority.__getitem__, self.priorities)

    def band(self, priority: int, now: float) -> BandQueue:
        """The band of a priority, made if there is none."""
        band = self.by_priority.get(priority)
        if band is None:
            band = self.by_priority[priority] = BandQueue(priority, self.rules.of_band(priority), now)
            self.priorities = tuple(sorted(self.by_priority, reverse=True))
        return band

    def highest_waiting(self) -> int | None:
        """The highest priority of which a request waits."""
        return next((band.priority for band in self if band), None)

    @property
    def is_over(self) -> bool:
        """Whether more wait than the limits of all together allow, as after a reload that lowered them."""
        rules = self.rules
        return self.size_bytes > rules.max_bytes > 0 or self.requests > rules.max_requests > 0

    def has_room_for(self, band: BandQueue, size_bytes: int) -> bool:
        """Whether one more request of that size may wait there; exactly at a limit it may."""
        rules = self.rules
        if rules.max_bytes and self.size_bytes + size_bytes > rules.max_bytes:
            return False
        if rules.max_requests and self.requests >= rules.max_requests:
            return False
        return band.has_room_for(size_bytes)

    def add(self, band: BandQueue, entry: Entry) -> None:
        """Have an entry wait."""
        band.add(entry)
        self.size_bytes += entry.size_bytes
        self.requests += 1

    def remove(self, entry: Entry, now: float) -> tuple[BandQueue, FlowQueue]:
        """Take out an entry that waits; what it has left."""
        band = entry.band
        assert band is not None
        flow = band.remove(entry)
        band._idle_since = now
        self.size_bytes -= entry.size_bytes
        self.requests -= 1
        return band, flow

    def forget_idle(self, now: float) -> list[int]:
        """Forget bands in which nothing waits, to which nothing came for long, and which are not listed; their priorities."""
        kept = {0, *self.rules.bands}
        idle = [band.priority for band in self if not band and band.priority not in kept and now - band.idle_since >= BAND_IDLE_SECONDS]
        for priority in idle:
            del self.by_priority[priority]
        if idle:
            self.priorities = tuple(sorted(self.by_priority, reverse=True))
        return idle

    def follow(self, rules: Rules, now: float) -> None:
        """Go on with other rules.

        A band is put in order anew where one of its policies is another, all of them where requests may wait for another time. Thousands
        may wait, and most reloads change nothing about either.
        """
        is_as_long = rules.ttl_seconds == self.rules.ttl_seconds
        self.rules = rules
        self.by_priority = {
            band.priority: _following(band, rules, now, is_as_long=is_as_long) for band in self if band or band.priority in rules.bands
        }
        for priority in {0, *rules.bands} - self.by_priority.keys():
            self.by_priority[priority] = BandQueue(priority, rules.of_band(priority), now)
        self.priorities = tuple(sorted(self.by_priority, reverse=True))


def _following(band: BandQueue, rules: Rules, now: float, *, is_as_long: bool) -> BandQueue:
    """A band under other rules: itself where what waits in it stays in order, else a new one."""
    of_band = rules.of_band(band.priority)
    if is_as_long and band.rules.has_policies_of(of_band):
        band.follow(of_band)
        return band
    new = BandQueue(band.priority, of_band, now)
    for entry in band.entries():
        if not is_as_long:
            put(entry, "ttl_seconds", rules.ttl_seconds)
        new.add(entry)
    return new
