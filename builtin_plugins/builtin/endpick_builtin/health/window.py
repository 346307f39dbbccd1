"""Outcomes of one endpoint's recent requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

_RECENT = 16  # first-token times
MIN_FIRST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Sets the numbers of failures from which an endpoint is ejected."""

    consecutive: int = 5
    percent: float = 85.0
    volume: int = 50  # requests in the window from which the percentage applies
    interval_seconds: float = 10.0


class RecentClients:
    """The last two clients and their times, enough to know if another client was served lately."""

    __slots__ = ("_before", "_before_at", "last", "last_at")

    def __init__(self) -> None:
        self.last = self._before = ""
        self.last_at = self._before_at = float("-inf")

    def add(self, client: str, now: float) -> None:
        """Record a request of this client."""
        if client != self.last:
            self._before, self._before_at = self.last, self.last_at
            self.last = client
        self.last_at = now

    def has_other(self, client: str, since: float) -> bool:
        """Whether a request of another client was recorded since then."""
        return (self._before_at if client == self.last else self.last_at) >= since


class Window:
    """Counts outcomes over the current interval and the one before."""

    __slots__ = (
        "_ends_at",
        "_failing",
        "_failures",
        "_failures_before",
        "_limits",
        "_measured",
        "_served",
        "_successes",
        "_successes_before",
        "consecutive",
        "first_tokens",
        "longest",
        "median",
    )

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._ends_at = now + limits.interval_seconds
        self._successes = self._successes_before = self._failures = self._failures_before = 0
        self._served = RecentClients()
        self._failing = RecentClients()
        self.consecutive = 0
        self.first_tokens: deque[float] = deque(maxlen=_RECENT)
        self._measured: float | None = None  # the last first-token time then
        self.longest = 0.0
        self.median: float | None = None  # before there are enough

    def succeeded(self, client: str, now: float) -> None:
        """Count a successful response to a client, which ends a run of consecutive failures."""
        if now >= self._ends_at:
            self._start_interval(now)
        self._successes += 1
        self.consecutive = 0
        served = self._served
        if client == served.last:
            served.last_at = now
        else:
            served.add(client, now)

    def server_error(self, client: str, now: float) -> bool:
        """Count an error of the model server; returns False if it does not count.

        Errors that only this client gets while others are served do not count: the client may provoke them.
        """
        since = now - self._limits.interval_seconds
        is_alone = not self._failing.has_other(client, since)
        self._failing.add(client, now)
        if is_alone and self._served.has_other(client, since):
            return False
        self.failed(now)
        return True

    def failed(self, now: float) -> None:
        """Count a failure, whichever client it affects."""
        if now >= self._ends_at:
            self._start_interval(now)
        self._failures += 1
        self.consecutive += 1

    def verdict(self) -> str:
        """Return why the endpoint should be ejected, or an empty text."""
        limits, failures = self._limits, self.failures
        volume = failures + self._successes + self._successes_before
        if self.consecutive >= limits.consecutive:
            return f"{self.consecutive} consecutive failures"
        if volume >= limits.volume and failures * 100 >= limits.percent * volume:
            return f"{failures} of {volume} requests failed"
        return ""

    @property
    def failures(self) -> int:
        """The number of failures in the current interval and the one before."""
        return self._failures + self._failures_before

    def pass_time(self, now: float) -> None:
        """Start the next interval if the current one is over."""
        if now >= self._ends_at:
            self._start_interval(now)

    def measure(self) -> None:
        """Update the median and the maximum of the first-token times if there is a new one."""
        tokens = self.first_tokens
        if tokens and tokens[-1] is not self._measured:
            self._measured = tokens[-1]
            self.longest = max(tokens)
            self.median = median(tokens) if len(tokens) >= MIN_FIRST_TOKENS else None

    def _start_interval(self, now: float) -> None:
        interval = self._limits.interval_seconds
        is_next = now < self._ends_at + interval
        self._successes_before, self._failures_before = (self._successes, self._failures) if is_next else (0, 0)
        self._successes = self._failures = 0
        self._ends_at = now + interval
