"""Polls data sources and delivers payloads to collectors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from endpick.api.access import Access
from endpick.api.datalayer import EndpointEvent, PollingPoolSource, PollingSource
from endpick.api.endpoint import Endpoint
from endpick.api.fleet import LearntState
from endpick.api.plugin import Parameters
from endpick.data.table import EndpointTable
from endpick.data.tasks import LONGEST_DELAY_SECONDS
from endpick.host.awaiting import is_being_cancelled
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.methods import COLLECT, NOTIFY, POLL, POLL_POOL, Method
from endpick.host.telemetry import Telemetry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """A source and its collectors. The `needed` keys that they write are required by other plugins."""

    source: Instance
    collectors: tuple[Instance, ...]
    needed: frozenset[str] = frozenset()


class PayloadDispatcher:
    """Calls a source, and passes its payloads to the collectors."""

    def __init__(self, binding: SourceBinding, table: EndpointTable, telemetry: Telemetry) -> None:
        self.source = binding.source
        self.needed = binding.needed
        self.reported = frozenset(
            key.name
            for instance in binding.collectors
            if not isinstance(instance.plugin, LearntState)  # sends its data to other pickers by itself
            for key in instance.subscriptions.produces
        )
        self._table = table
        self._telemetry = telemetry
        self._access = Access(None, telemetry.undeclared_access)
        self._collectors = tuple(bind(instance, COLLECT, telemetry) for instance in binding.collectors)

    def deliver(self, payload: object, endpoint: Endpoint | None, since: float | None = None) -> None:
        """Pass a payload, unless it is None, to the collectors.

        It is pool-wide without `endpoint`. Values newer than `since`, the time of the request (None if pushed), are kept.
        """
        if payload is None:
            return
        for step in self._collectors:
            answer = step.run(self._access, payload, self._table.writer(step.instance.scope, endpoint, since))
            if isinstance(answer, Fault) and answer.uncounted is not None:
                self._telemetry.collect_error(self.source, step.instance, endpoint.name if endpoint else "", answer.uncounted)
        for delivered in self._table.on_delivered:
            delivered()

    async def poll(self, step: Step[object], timeout_seconds: float, *arguments: object) -> object:
        """Poll once; returns a payload, None or a `Fault`."""
        return await step.run_async(self._access, timeout_seconds, *arguments)

    def bind_notify(self) -> Callable[[EndpointEvent], None]:
        """Return the callback for endpoint events."""
        step = bind(self.source, NOTIFY, self._telemetry)

        def notify(event: EndpointEvent) -> None:
            answer = step.run(self._access, event)
            if isinstance(answer, Fault):
                self.failed(event.endpoint.name, answer)
            else:
                self.deliver(answer, event.endpoint)

        return notify

    def step(self, method: Method[T]) -> Step[T]:
        """Bind a method of the source."""
        return bind(self.source, method, self._telemetry)

    def publisher_for(self, name: str) -> Callable[[object], None]:
        """Return the `publish` callback of a stream; it ignores payloads of endpoints that have left."""

        def publish(payload: object) -> None:
            endpoint = self._table.find(name)
            if endpoint is not None:
                self.deliver(payload, endpoint)

        return publish

    def publish_pool(self, payload: object) -> None:
        """Pass a pool-wide payload to the collectors."""
        self.deliver(payload, None)

    def failed(self, endpoint: str, problem: Fault | BaseException | str) -> None:
        """Count a poll error, unless the boundary counted it; `endpoint` is "" for a pool-wide source."""
        found = problem.uncounted if isinstance(problem, Fault) else problem
        if found is not None:
            self._telemetry.poll_error(self.source, endpoint, found)


SHORTEST_INTERVAL_SECONDS = 0.05
MAX_POLLS_PER_SECOND = 3000  # larger pools are polled less often
_FAILURES_BEFORE_BACKOFF = 5
_LONGEST_BACKOFF_SECONDS = 1.0
_REPEATS_BEFORE_IDLE = 5
_POLLS_WHILE_FRESH = 2
_FRESH_INTERVALS = 2  # maximum age of a report: other workers send about one per interval
_GROUP_SIZE = 8  # polled together: fewer wake-ups, but requests wait for the group


@dataclass(slots=True)
class PollCounts:
    """Counts polls. `skipped`: idle or down endpoint; `reported`: responses gave all required data."""

    made: int = 0
    skipped: int = 0
    reported: int = 0

    def snapshot(self) -> dict[str, int]:
        """Return the counts by event: `made`, `skipped` and `reported`."""
        return {"made": self.made, "skipped": self.skipped, "reported": self.reported}


@dataclass(slots=True)
class Watched:
    """An endpoint that is polled (replaced when labels change), and its number for grouping."""

    endpoint: Endpoint
    number: int
    tasks: list[asyncio.Task[None]]


def next_poll_at(after: float, interval_seconds: float, phase: float) -> float:
    """Return the next time in the `phase` (0 to 1) of an interval; all in seconds."""
    return (math.floor(after / interval_seconds - phase) + 1 + phase) * interval_seconds


class PollSchedule:
    """The delay between polls of an endpoint, longer while its payload repeats or polls fail."""

    __slots__ = ("_failures", "_idle_seconds", "_interval_seconds", "_last", "_repeats", "delay_seconds")

    def __init__(self, interval_seconds: float, idle_seconds: float) -> None:
        self.delay_seconds = interval_seconds
        self._interval_seconds = interval_seconds
        self._idle_seconds = idle_seconds
        self._failures = 0
        self._repeats = 0
        self._last: object = None

    @property
    def is_relaxed(self) -> bool:
        """True while the delay is longer than the interval."""
        return self.delay_seconds > self._interval_seconds

    def answered(self, payload: object) -> None:
        """Record a payload; the same object as before counts as unchanged."""
        self._failures = 0
        if payload is not self._last:
            self._last = payload
            self.reset()
            return
        self._repeats += 1
        if self._repeats >= _REPEATS_BEFORE_IDLE:
            self.delay_seconds = max(self._interval_seconds, min(self.delay_seconds * 2, self._idle_seconds))

    def failed(self) -> None:
        """Record a failed poll; several in a row lengthen the delay."""
        self.reset()
        self._failures += 1
        doublings = min(max(self._failures - _FAILURES_BEFORE_BACKOFF, 0), 10)
        longest = max(self._interval_seconds, _LONGEST_BACKOFF_SECONDS)
        self.delay_seconds = min(self._interval_seconds * 2**doublings, longest)

    def reset(self) -> None:
        """Return to the normal interval, and forget repeated payloads."""
        self.delay_seconds = self._interval_seconds
        self._repeats = 0


class PolledSource:
    """Polls the endpoints of a pool with one source."""

    def __init__(
        self,
        plugin: PollingSource[Parameters, object],
        dispatcher: PayloadDispatcher,
        table: EndpointTable,
        counts: PollCounts,
        *,
        refresh_seconds: float,
        idle_seconds: float,
        tolerated_age_seconds: float,
    ) -> None:
        interval = refresh_seconds if plugin.interval_seconds is None else plugin.interval_seconds
        self.interval_seconds = max(SHORTEST_INTERVAL_SECONDS, interval)
        self.stretch = 1.0  # interval factor in large pools
        self.groups = 1
        can_idle = plugin.repeats_payload and plugin.interval_seconds is None
        idle = min(idle_seconds, tolerated_age_seconds / _POLLS_WHILE_FRESH) if can_idle else 0.0
        self._idle_seconds = max(idle, self.interval_seconds)
        self._dispatcher = dispatcher
        self._step, self._timeout_seconds = dispatcher.step(POLL), plugin.timeout_seconds
        self._table = table
        self._counts = counts

    async def follow(self, watched: Watched) -> None:
        """Poll an endpoint until the task is cancelled."""
        loop = asyncio.get_running_loop()
        schedule = PollSchedule(self.interval_seconds, self._idle_seconds)
        sent = self._table.sent
        waited, delivered_at, due_at = math.inf, math.inf, loop.time()
        while not is_being_cancelled():  # a plugin may swallow its cancellation
            endpoint, interval = watched.endpoint, self.interval_seconds * self.stretch
            if schedule.is_relaxed and endpoint.address in sent:
                schedule.reset()  # it has work now
            if waited < schedule.delay_seconds - interval / 2:
                self._counts.skipped += 1
            elif waited + interval <= self._idle_seconds and self._has_reported(endpoint.name, delivered_at, interval):
                self._counts.reported += 1
            else:
                self._counts.made += 1
                waited = 0.0
                await self.poll(endpoint, schedule)
                delivered_at = self._table.clock()
                if schedule.is_relaxed and endpoint.address in sent:
                    sent.discard(endpoint.address)
                    schedule.reset()
            due_at = next_poll_at(max(loop.time(), due_at + interval / 2), interval, watched.number % self.groups / self.groups)
            await asyncio.sleep(due_at - loop.time())
            waited += interval

    async def poll(self, endpoint: Endpoint, schedule: PollSchedule) -> None:
        """Poll once, and deliver the payload or count the error."""
        since = self._table.clock()
        payload = await self._dispatcher.poll(self._step, self._timeout_seconds, endpoint)
        if isinstance(payload, Fault):
            schedule.failed()
            self._dispatcher.failed(endpoint.name, payload)
            return
        schedule.answered(payload)
        self._dispatcher.deliver(payload, endpoint, since)
        for notify in self._table.on_polled:
            notify(self._dispatcher.source.name, endpoint, self._dispatcher.reported, since)

    def _has_reported(self, name: str, delivered_at: float, interval_seconds: float) -> bool:
        needed = self._dispatcher.needed
        written_at = self._table.oldest_write(name, needed) if needed else -math.inf
        written_at = max(written_at, self._table.received.get((self._dispatcher.source.name, name), -math.inf))
        return written_at > delivered_at and self._table.clock() - written_at <= _FRESH_INTERVALS * interval_seconds


def adapt_to_pool(sources: list[PolledSource], endpoints: int) -> None:
    """Spread the polls over the interval, and lengthen it beyond `MAX_POLLS_PER_SECOND`."""
    polls_per_second = endpoints * sum(1 / source.interval_seconds for source in sources)
    for source in sources:
        source.stretch = max(1.0, polls_per_second / MAX_POLLS_PER_SECOND)
        source.groups = max(1, endpoints // _GROUP_SIZE)


def pool_delay(failures: int, interval_seconds: float) -> float:
    """Return the seconds between polls: after failures 1 s or the interval if shorter, doubled up to 30 s."""
    if not failures:
        return interval_seconds
    first = min(interval_seconds, 1.0)
    return float(min(first * 2 ** min(failures - 1, 10), max(interval_seconds, LONGEST_DELAY_SECONDS)))


async def poll_pool(source: PollingPoolSource[Parameters, object], dispatcher: PayloadDispatcher) -> None:
    """Poll a pool-wide source until the task is cancelled."""
    loop = asyncio.get_running_loop()
    interval = max(source.interval_seconds, SHORTEST_INTERVAL_SECONDS)
    step = dispatcher.step(POLL_POOL)
    failures = 0
    while not is_being_cancelled():
        started = loop.time()
        payload = await dispatcher.poll(step, source.timeout_seconds)
        if isinstance(payload, Fault):
            failures += 1
            dispatcher.failed("", payload)
        else:
            failures = 0
            dispatcher.publish_pool(payload)
        await asyncio.sleep(max(0.0, started + pool_delay(failures, interval) - loop.time()))
