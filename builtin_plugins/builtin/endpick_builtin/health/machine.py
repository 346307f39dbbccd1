"""The health states of one endpoint, and the choice of endpoints that get no requests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from endpick.api.keys import HealthState


class Event(Enum):
    """An observation that may change an endpoint's health state."""

    SUSPECTED = "a sign of trouble"
    CLEARED = "no sign of trouble"
    CONDEMNED = "failed too often, hung, or failed the trial"
    FELL_ASLEEP = "asleep"
    RETURNED = "awake, or reporting metrics again"
    EXPIRED = "end of the ejection time"
    SUCCEEDED = "the trial succeeded"
    RESTARTED = "the model server restarted"


_HEALTHY: Final = HealthState.HEALTHY
_DEGRADED: Final = HealthState.DEGRADED
_EJECTED: Final = HealthState.EJECTED
_PROBING: Final = HealthState.PROBING

TRANSITIONS: Final[Mapping[tuple[HealthState, Event], HealthState]] = {
    (_HEALTHY, Event.SUSPECTED): _DEGRADED,
    (_HEALTHY, Event.CONDEMNED): _EJECTED,
    (_HEALTHY, Event.FELL_ASLEEP): _EJECTED,
    (_DEGRADED, Event.CLEARED): _HEALTHY,
    (_DEGRADED, Event.CONDEMNED): _EJECTED,
    (_DEGRADED, Event.FELL_ASLEEP): _EJECTED,
    (_DEGRADED, Event.RESTARTED): _HEALTHY,
    (_EJECTED, Event.FELL_ASLEEP): _EJECTED,
    (_EJECTED, Event.RETURNED): _PROBING,
    (_EJECTED, Event.EXPIRED): _PROBING,
    (_EJECTED, Event.RESTARTED): _PROBING,
    (_PROBING, Event.CONDEMNED): _EJECTED,
    (_PROBING, Event.FELL_ASLEEP): _EJECTED,
    (_PROBING, Event.SUCCEEDED): _HEALTHY,
}
"""Other events change nothing."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long ejections last.

    An ejection lasts `base_seconds` times the number of ejections, at most `max_seconds`; each healthy interval takes one off.
    """

    base_seconds: float = 30.0
    max_seconds: float = 300.0
    interval_seconds: float = 10.0

    @property
    def max_ejections(self) -> int:
        """The number of ejections beyond which another one lasts no longer."""
        return max(1, math.ceil(self.max_seconds / self.base_seconds))


class Machine:
    """The health state of one endpoint, and the trial request while it is probed."""

    __slots__ = ("_forgives_at", "_times", "ejections", "reason", "since", "state", "trial", "until")

    def __init__(self, times: Times, now: float) -> None:
        self._times = times
        self._forgives_at = 0.0
        self.state = _HEALTHY
        self.reason = ""
        self.since = now
        self.ejections = 0
        self.until = now  # end of the ejection; infinite while asleep
        self.trial: object | None = None

    @property
    def is_ejected(self) -> bool:
        """Whether the endpoint is out because it failed, not because it is asleep."""
        return self.state is _EJECTED and self.until != math.inf

    @property
    def is_asleep(self) -> bool:
        """Whether the endpoint is asleep: from `FELL_ASLEEP` until `RETURNED` or `RESTARTED`."""
        return self.state is _EJECTED and self.until == math.inf

    def take(self, event: Event, now: float, reason: str = "") -> bool:
        """Apply an event; returns True if the state changed."""
        following = TRANSITIONS.get((self.state, event))
        if following is None or (self.is_asleep and event in (Event.EXPIRED, Event.FELL_ASLEEP)):
            return False
        self.state, self.since, self.reason, self.trial = following, now, reason, None
        self._forgives_at = now + self._times.interval_seconds
        if event is Event.FELL_ASLEEP:
            self.until = math.inf
        elif following is _EJECTED:
            self.ejections = min(self.ejections + 1, self._times.max_ejections)
            self.until = now + min(self.ejections * self._times.base_seconds, self._times.max_seconds)
        return True

    def pass_time(self, now: float) -> bool:
        """End an ejection, or take one off after a healthy interval; returns True if the state changed."""
        if self.state is _EJECTED:
            return now >= self.until and self.take(Event.EXPIRED, now, "one trial request decides")
        if self.ejections and self.state is _HEALTHY and now >= self._forgives_at:
            self.ejections -= 1
            self._forgives_at = now + self._times.interval_seconds
        return False

    def claim(self, request: object) -> None:
        """Make this request the trial if the endpoint is probed and has none."""
        if self.state is _PROBING and self.trial is None:
            self.trial = request

    def release(self, request: object) -> None:
        """Give up the trial without a result, if this request is the trial."""
        if self.trial is request:
            self.trial = None


class Absence(NamedTuple):
    """An endpoint that should receive no requests now."""

    severity: tuple[int, ...]  # larger is worse
    name: str
    group: str  # endpoints of a group can replace each other
    is_certain: bool  # not inferred from a few requests


def left_out(absences: Iterable[Absence], sizes: Mapping[str, int], max_percent: float) -> frozenset[str]:
    """Return the names of endpoints that receive no requests.

    In each group: all certain ones, then the worst others up to `max_percent` of the group, but never the last one that may serve.
    """
    groups: defaultdict[str, list[Absence]] = defaultdict(list)
    for absence in absences:
        groups[absence.group].append(absence)
    names: set[str] = set()
    for group, members in groups.items():
        certain = [absence.name for absence in members if absence.is_certain]
        others = sorted((absence for absence in members if not absence.is_certain), reverse=True)
        left = sizes[group] - len(certain)
        if left > 0:
            allowed = min(int(sizes[group] * max_percent / 100), left - 1)
            names.update(certain, (absence.name for absence in others[:allowed]))
    return frozenset(names)
