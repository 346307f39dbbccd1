"""When endpoints are asked: each source in its turn, at few moments of a tick; one with nothing to do, or without an answer, less often."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SHORTEST_TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cadence:
    """The base tick, and how many of them each source waits."""

    tick_seconds: float
    every: tuple[int, ...]
    """For each source, in the order given to `cadence_of`."""

    def due(self, tick: int, passed: int = 1) -> tuple[int, ...]:
        """Positions of the sources to poll at this tick, counted from 1, when so many have passed. Tick 1 polls every source."""
        due: tuple[int, ...] = ()
        for position, every in enumerate(self.every):
            if (tick - 1) % every < passed:
                due += (position,)
        return due


def cadence_of(refresh_interval_seconds: float, intervals: Iterable[float | None]) -> Cadence:
    """The cadence of sources with these intervals; None follows the refresh interval.

    The tick is the shortest interval asked for, but never under 50 ms; every other interval is rounded to a whole number of ticks.
    """
    wanted = tuple(refresh_interval_seconds if interval is None else interval for interval in intervals)
    tick = max(SHORTEST_TICK_SECONDS, min((refresh_interval_seconds, *wanted)))
    return Cadence(tick, tuple(max(1, round(interval / tick)) for interval in wanted))


class Moments:
    """Spreads endpoints over the tick, however many there are and whenever they come, in groups that are polled together.

    Each time the process wakes costs more than a poll does, so endpoints share as few moments of the tick as will do; groups stay small,
    because requests wait for them.
    """

    _GROUP = 8

    def __init__(self) -> None:
        self._taken: Counter[float] = Counter()
        """By moment, how many endpoints have it."""
        self._endpoints = 0
        self._last = -1
        """Which of the moments was given last: the search goes on behind it, so that it is short for a pool that comes as a whole."""

    def join(self, endpoints: int) -> float:
        """The moment of one more endpoint in a pool of so many, as a share of the tick, 0 to 1; a larger pool has these and others."""
        count = 1
        while count * self._GROUP < endpoints:
            count *= 2
        fair_share = self._endpoints // count
        while True:  # there is always a moment with no more than its share
            self._last = (self._last + 1) % count
            moment = self._last / count
            if self._taken[moment] <= fair_share:
                self._taken[moment] += 1
                self._endpoints += 1
                return moment

    def leave(self, moment: float) -> None:
        """An endpoint that had this moment has left."""
        self._taken[moment] -= 1
        self._endpoints -= 1


def first_at(now: float, tick_seconds: float, phase: float) -> float:
    """When an endpoint has its turn next: half a tick from now at the earliest, and at the same moment as others of its phase."""
    ticks = math.ceil((now + tick_seconds / 2) / tick_seconds - phase)
    return (ticks + phase) * tick_seconds


FAILURES_BEFORE_BACKING_OFF = 5
"""Polls in a row that failed, after which an endpoint is asked less often."""
LONGEST_BACK_OFF_SECONDS = 1.0
"""Between two polls of an endpoint that does not answer, or its interval where that is longer: so soon it is noticed again."""
REPEATS_BEFORE_STRETCHING = 5
"""Answers in a row that say nothing new, after which an endpoint is asked less often."""
_LOOKS_WHILE_FRESH = 2
"""How often an endpoint is asked at least within the shortest time after which a plugin takes its data for stale."""


@dataclass(slots=True)
class PollCounts:
    """What became of the polls that were due, over the life of a process."""

    made: int = 0
    skipped: int = 0
    """Of endpoints with nothing to do, or that do not answer."""
    told: int = 0
    """Left out because the endpoint had just told by itself what plugins must have."""

    def snapshot(self) -> dict[str, int]:
        """By event, for `/metrics`."""
        return {"made": self.made, "skipped": self.skipped, "told": self.told}


MOST_POLLS_PER_SECOND = 3000
"""Of all endpoints together: more of them would leave the event loop no time for requests."""


_MEASURE_SECONDS = 1.0
_WINDOW_SECONDS = 0.01
_LOOKS_PER_WINDOW = 32
_LATE_SECONDS = 0.05
_LONGEST_STRETCH = 200


class PollLoad:
    """How many ticks pass between two looks at an endpoint: one, or as many as keep the polls of a large pool to what the loop can do."""

    __slots__ = ("_began", "_counts", "_late_seconds", "_looks", "_made", "_measured_at", "is_large", "stretch")

    def __init__(self, counts: PollCounts) -> None:
        self._counts = counts
        self._made = counts.made
        self._measured_at = 0.0
        self._late_seconds = 0.0
        self._began, self._looks = -math.inf, 0
        """Of the present window."""
        self.stretch = 1
        self.is_large = False
        """Whether the pool could ask for more than there may be."""

    def joined(self, endpoints: int, polls_per_second: float, now: float) -> None:
        """There are so many endpoints now, each of which may ask for so many polls."""
        wanted = math.ceil(endpoints * polls_per_second / MOST_POLLS_PER_SECOND)
        self.is_large = wanted > 1
        if wanted > self.stretch:
            self.stretch, self._made, self._measured_at = wanted, self._counts.made, now

    def admits(self, now: float) -> bool:
        """Whether another look may be had now; a loop that is behind would have all that have become due, and nothing else meanwhile."""
        if now - self._began >= _WINDOW_SECONDS:
            self._began, self._looks = now, 0
        self._looks += 1
        return self._looks <= _LOOKS_PER_WINDOW

    def measure(self, now: float, due_at: float) -> None:
        """Called at each look in a large pool, with the moment at which it was due.

        Where looks come late they become fewer. Where endpoints have nothing to do, and ask for less, all are looked at more often.
        """
        self._late_seconds = max(self._late_seconds, now - due_at)
        seconds = now - self._measured_at
        if seconds < _MEASURE_SECONDS:
            return
        made, self._made, self._measured_at = self._counts.made - self._made, self._counts.made, now
        wanted = max(1, math.ceil(made / seconds * self.stretch / MOST_POLLS_PER_SECOND))
        is_late, self._late_seconds = self._late_seconds > _LATE_SECONDS, 0.0
        self.stretch = min(max(wanted, self.stretch * 2), _LONGEST_STRETCH) if is_late else max(wanted, self.stretch // 2)


def longest_stretch(interval_seconds: float, idle_interval_seconds: float, tolerated_age_seconds: float) -> int:
    """How many intervals may pass at most between two polls of an idle endpoint; 1 where it is asked as often as a busy one.

    Args:
        interval_seconds: between two polls of a busy one.
        idle_interval_seconds: what the operator allows.
        tolerated_age_seconds: the shortest age at which a plugin takes data for stale; infinite when none looks at ages.
    """
    longest = min(idle_interval_seconds, tolerated_age_seconds / _LOOKS_WHILE_FRESH)
    return max(1, math.floor(longest / interval_seconds + 1e-9))


def _nothing() -> None:
    return None


def _remembered(payload: object) -> Callable[[], object]:
    """What gives the payload for as long as its source keeps it, where that can be: of a page of 8 MiB that no other has, None is left."""
    try:
        return weakref.ref(payload)
    except TypeError:
        return lambda: payload


class Pace:
    """Which of the polls of one endpoint by one source are made."""

    __slots__ = ("_counts", "_failures", "_last", "_left_out", "_longest", "_longest_back_off", "_repeats", "_stretch", "_to_skip")

    def __init__(self, longest: int, counts: PollCounts, interval_seconds: float = LONGEST_BACK_OFF_SECONDS) -> None:
        """Every poll is made at first; `longest` is what `longest_stretch` says."""
        self._longest = longest
        self._longest_back_off = max(1, math.floor(LONGEST_BACK_OFF_SECONDS / interval_seconds + 1e-9))
        self._failures = 0
        self._counts = counts
        self._stretch = 1
        self._to_skip = 0
        self._left_out = 0
        self._repeats = 0
        self._last: Callable[[], object] = _nothing

    @property
    def may_stretch(self) -> bool:
        """Whether any poll may be left out."""
        return self._longest > 1

    def is_due(self, *, told: bool = False, passed: int = 1) -> bool:
        """Asked once in each interval, or when so many have passed: whether the poll is made this time.

        `told` says that the endpoint has just told by itself what the poll is made for; it is polled now and then all the same.
        """
        if told and self._left_out + 1 < self._longest:
            self._left_out += 1
            self._counts.told += 1
            return False
        if self._to_skip >= passed:
            self._to_skip -= passed
            self._left_out += 1
            self._counts.skipped += 1
            return False
        self._left_out = 0
        self._to_skip = self._stretch - 1
        self._counts.made += 1
        return True

    def answered(self, payload: object) -> None:
        """The same object again means that nothing changed."""
        self._failures = 0
        if payload is not self._last():
            self._last = _remembered(payload)
            self.reset()
            return
        self._repeats += 1
        if self._repeats >= REPEATS_BEFORE_STRETCHING:
            self._stretch = min(self._stretch * 2, self._longest)

    def failed(self) -> None:
        """There was no answer: a few more are asked for as usual, and then fewer, so that a server that is down is not hammered."""
        self.reset()
        self._failures += 1
        if self._failures > FAILURES_BEFORE_BACKING_OFF:
            doublings = min(self._failures - FAILURES_BEFORE_BACKING_OFF, 16)
            self._to_skip = min(2**doublings, self._longest_back_off) - 1

    def reset(self) -> None:
        """Ask as often as usual, beginning with the next interval: a request was sent, a poll failed, or something changed."""
        self._stretch, self._to_skip, self._repeats = 1, 0, 0
