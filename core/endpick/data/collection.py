"""Keeps the endpoint table current: runs every data source over every endpoint."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from endpick.api.datalayer import (
    EndpointChange,
    EndpointEvent,
    EndpointEventSource,
    PollingPoolSource,
    PollingSource,
    PoolSource,
    StreamSource,
)
from endpick.api.endpoint import Endpoint
from endpick.api.generation import Generation
from endpick.api.plugin import Parameters
from endpick.data.announcing import Announcements
from endpick.data.dispatch import PayloadDispatcher, SourceBinding
from endpick.data.pace import (
    LONGEST_BACK_OFF_SECONDS,
    MOST_POLLS_PER_SECOND,
    Cadence,
    Moments,
    Pace,
    PollCounts,
    PollLoad,
    cadence_of,
    first_at,
    longest_stretch,
)
from endpick.data.polled_source import PolledSource
from endpick.data.pool_poller import PoolPoller
from endpick.data.table import EndpointTable
from endpick.data.tasks import TaskGroup, keep_running, stop_all
from endpick.host.failures import CALL_FAILURES, is_closing, is_the_hosts, kind_of, message_of
from endpick.host.telemetry import Telemetry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything that is collected. A source without collectors is not asked: no instance would see what it brings."""

    bindings: tuple[SourceBinding, ...] = ()
    tolerated_age_seconds: float = math.inf
    """The shortest age at which an instance of the plan takes data for stale; see `Plugin.tolerated_age_seconds`."""


class EndpointPoller:
    """The polling of one endpoint.

    Each source is polled by a task of its own, so one that hangs delays no other; a source still busy when its turn comes misses that turn.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        sources: tuple[PolledSource, ...],
        paces: tuple[Pace, ...],
        cadence: Cadence,
        load: PollLoad,
        sent: set[str],
        tasks: TaskGroup,
    ) -> None:
        """For one endpoint.

        Args:
            endpoint: whom to ask.
            sources: what is asked.
            paces: for each source, which polls are made.
            cadence: when each source has its turn.
            load: how many ticks each turn takes now.
            sent: addresses to which requests were sent; the endpoint's own is taken out.
            tasks: where polls run.
        """
        self.endpoint = endpoint
        """Replaced when discovery changes the labels; the next poll sees the new one."""
        self._name, self._address = endpoint.name, endpoint.address
        """Kept beside it: plugins have the same object, and one may spoil it."""
        self._sources = sources
        self._paces = paces
        self._cadence = cadence
        self._load = load
        self._sent = sent
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._turns: list[asyncio.Future[None] | None] = [None] * len(sources)
        """What the task of each source waits for; None while it polls."""
        self._tick = 0
        self._stretch = 1
        self._next_at = 0.0
        self.phase = 0.0
        """The moment of the tick at which it polls, 0 to 1; given to `start`."""
        self._timer: asyncio.Handle | None = None

    def start(self, phase: float) -> None:
        """Poll until `stop`: everything at once, then tick by tick, at the moment of the tick that `phase` (0 to 1) says."""
        self.phase = phase
        self._next_at = first_at(self._loop.time(), self._cadence.tick_seconds, phase) - self._cadence.tick_seconds
        for position, source in enumerate(self._sources):
            self._tasks.keep(partial(self._poll_in_turn, position), partial(source.dispatcher.failed, self._name))
        self._timer = self._loop.call_soon(self._look)

    def stop(self) -> None:
        """Poll no more; what is under way is for the owner of the tasks to end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _poll_in_turn(self, position: int) -> None:
        source, pace, own = self._sources[position], self._paces[position], asyncio.current_task()
        while self._timer is not None:  # a plugin may swallow that its task was cancelled
            turn = self._turns[position] = self._loop.create_future()
            await turn
            try:
                await source.poll(self.endpoint, self._name, pace)
            except CALL_FAILURES as problem:
                if is_closing(problem, own) or is_the_hosts(problem):
                    raise
                self._failed(problem, source)

    def _failed(self, problem: BaseException, *sources: PolledSource) -> None:
        """Something around a poll failed, as where a plugin has spoilt what all have of the endpoint: there is no payload, for now."""
        for source in sources:
            source.dispatcher.failed(self._name, f"the endpoint cannot be read: {kind_of(problem)}: {message_of(problem)}")

    def _look(self) -> None:
        """Take a turn, and come again whatever becomes of this one."""
        try:
            self._take_turn()
        except CALL_FAILURES as problem:
            self._failed(problem, *self._sources)
            if self._timer is not None:
                self._next_at = self._loop.time() + LONGEST_BACK_OFF_SECONDS
                self._timer = self._loop.call_at(self._next_at, self._look)

    def _take_turn(self) -> None:
        if self._load.is_large and not self._may_look():
            return
        stretch = self._stretch if self._tick else 1
        self._tick += stretch
        if self._address in self._sent:
            self._sent.discard(self._address)
            for pace in self._paces:
                pace.reset()
        for position in self._cadence.due(self._tick, stretch):
            pace = self._paces[position]
            every = self._cadence.every[position]
            told = pace.may_stretch and self._sources[position].is_told(self._name, every * self._cadence.tick_seconds)
            if pace.is_due(told=told, passed=stretch // every or 1):
                self._poll_unless_busy(position)
        now = self._loop.time()
        before, self._stretch = self._stretch, self._load.stretch
        tick_seconds = self._cadence.tick_seconds * self._stretch
        is_behind = self._next_at + tick_seconds < now or before != self._stretch
        self._next_at = first_at(now, tick_seconds, self.phase) if is_behind else self._next_at + tick_seconds
        self._timer = self._loop.call_at(self._next_at, self._look)

    def _may_look(self) -> bool:
        """Whether a large pool leaves it a turn now; else it comes a tick later."""
        now = self._loop.time()
        self._load.measure(now, self._next_at)
        if self._load.admits(now):
            return True
        self._next_at = now + self._cadence.tick_seconds
        self._timer = self._loop.call_at(self._next_at, self._look)
        return False

    def _poll_unless_busy(self, position: int) -> None:
        turn = self._turns[position]
        if turn is not None and not turn.done():
            self._turns[position] = None
            turn.set_result(None)


_AT_ONCE = 16
"""Endpoints that join, and as many that leave, before everything else has a turn."""
DEFAULT_REFRESH_INTERVAL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """How the loop runs.

    Attributes:
        refresh_interval_seconds: For sources with no interval of their own; 50 ms when zero or negative, as in llm-d.
        idle_interval_seconds: What that may become for an endpoint with nothing to do; not more than the former asks it as often as others.
        stop_grace_seconds: How long `stop` waits for plugins that do not heed cancellation.
    """

    refresh_interval_seconds: float = DEFAULT_REFRESH_INTERVAL_SECONDS
    idle_interval_seconds: float = 1.0
    stop_grace_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class _Watched:
    """What runs for one endpoint."""

    poller: EndpointPoller
    tasks: TaskGroup


class CollectionLoop:
    """Runs every source of a plan over every endpoint of a table."""

    def __init__(
        self,
        table: EndpointTable,
        collection: Collection,
        settings: CollectionSettings,
        telemetry: Telemetry,
        counts: PollCounts | None = None,
    ) -> None:
        """`counts` goes on where the loop before this one ended."""
        self._table = table
        self._tolerated_age_seconds = collection.tolerated_age_seconds
        self._counts = counts or PollCounts()
        self._settings = settings
        self._watched: dict[str, _Watched] = {}
        self._load = PollLoad(self._counts)
        self._waiting: deque[Endpoint] = deque()
        """Endpoints that have joined and are not watched yet: a thousand that come together are not all asked at once."""
        self._gone: deque[str] = deque()
        """Endpoints that have left, or are other servers by now, and are watched still: a thousand that leave are not all ended at once."""
        self._changing: asyncio.TimerHandle | None = None
        self._pool_tasks = TaskGroup()
        self._leaving: list[TaskGroup] = []
        self._moments = Moments()
        self._polled: list[PolledSource] = []
        self._streams: list[tuple[StreamSource[Parameters, object], PayloadDispatcher]] = []
        self._pool_pollers: list[PoolPoller] = []
        self._pool_sources: list[tuple[PoolSource[Parameters, object], PayloadDispatcher]] = []
        self._event_sources: list[tuple[EndpointEventSource[Parameters, object], PayloadDispatcher]] = []
        self._announcements = Announcements(telemetry)
        self._dispatchers = [PayloadDispatcher(binding, table, telemetry) for binding in collection.bindings if binding.collectors]
        for dispatcher in self._dispatchers:
            self._sort_in(dispatcher)
        refresh = settings.refresh_interval_seconds
        self._cadence = cadence_of(
            refresh if refresh > 0 else DEFAULT_REFRESH_INTERVAL_SECONDS, (source.interval_seconds for source in self._polled)
        )
        self._polls_per_second = sum(1 / (self._cadence.tick_seconds * every) for every in self._cadence.every)

    def start(self) -> None:
        """Collect for every endpoint in the table, and for those that join. Call it on the running event loop, once."""
        for source, dispatcher in self._pool_sources:
            run = partial(source.watch_pool, dispatcher.publish_pool)
            failed = partial(dispatcher.failed, "")
            self._pool_tasks.keep(partial(keep_running, run, failed), failed)
        for poller in self._pool_pollers:
            self._pool_tasks.keep(poller.run, poller.failed)
        self._table.on_changed.append(self._follow)
        self._follow(self._table.generation)

    async def stop(self) -> int:
        """End everything and wait for it; returns how many tasks of plugins would not end. Safe to call twice."""
        if self._follow in self._table.on_changed:
            self._table.on_changed.remove(self._follow)
        if self._changing is not None:
            self._changing.cancel()
        self._waiting.clear()
        self._announcements.stop()
        self._gone.clear()
        for count, name in enumerate(tuple(self._watched), 1):
            self._leave(name)
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
        for source in self._polled:
            source.limit.stop()
        leaving, self._leaving = self._leaving, []
        return await stop_all((self._pool_tasks, *leaving), self._settings.stop_grace_seconds)

    def _sort_in(self, dispatcher: PayloadDispatcher) -> None:
        plugin = dispatcher.source.plugin
        if isinstance(plugin, PollingSource):
            self._polled.append(PolledSource(plugin, dispatcher))
        if isinstance(plugin, StreamSource):
            self._streams.append((plugin, dispatcher))
        if isinstance(plugin, PollingPoolSource):
            self._pool_pollers.append(PoolPoller(plugin, dispatcher))
        if isinstance(plugin, PoolSource):
            self._pool_sources.append((plugin, dispatcher))
        if isinstance(plugin, EndpointEventSource):
            self._event_sources.append((plugin, dispatcher))

    def _follow(self, generation: Generation) -> None:
        """Bring what runs in line with who is in the pool."""
        self._leaving = [tasks for tasks in self._leaving if len(tasks)]
        self._table.sent.intersection_update(endpoint.address for endpoint in generation.endpoints)
        self._gone = deque(name for name in self._watched if name not in generation.row_of)
        joining: deque[Endpoint] = deque()
        for endpoint in generation.endpoints:
            watched = self._watched.get(endpoint.name)
            if watched is None or not _same_server(endpoint, watched.poller.endpoint):
                joining.append(endpoint)
            elif watched.poller.endpoint is not endpoint:
                watched.poller.endpoint = endpoint
                self._tell(EndpointChange.UPDATED, endpoint)
        self._waiting = joining
        if self._changing is None:
            self._change_some()

    def _change_some(self) -> None:
        """A group now, and the next one when its polls would keep the loop from nothing else."""
        loop = asyncio.get_running_loop()
        is_unfinished = len(self._waiting) > _AT_ONCE or len(self._gone) > _AT_ONCE
        self._changing = loop.call_later(_AT_ONCE / MOST_POLLS_PER_SECOND, self._change_some) if is_unfinished else None
        for name in _some_of(self._gone):
            self._let_go(name)
        group = _some_of(self._waiting)
        self._load.joined(len(self._watched) + len(group), self._polls_per_second, loop.time())
        for endpoint in group:
            if endpoint.name in self._watched:  # as another server
                self._let_go(endpoint.name)
            self._join(endpoint)
            self._tell(EndpointChange.ADDED, endpoint)

    def _let_go(self, name: str) -> None:
        endpoint = self._watched[name].poller.endpoint
        self._leave(name)
        self._tell(EndpointChange.REMOVED, endpoint)

    def _join(self, endpoint: Endpoint) -> None:
        tasks = TaskGroup()
        paces = tuple(self._pace_of(source, every) for source, every in zip(self._polled, self._cadence.every, strict=True))
        poller = EndpointPoller(endpoint, tuple(self._polled), paces, self._cadence, self._load, self._table.sent, tasks)
        self._watched[endpoint.name] = _Watched(poller, tasks)
        if self._polled:
            poller.start(self._moments.join(len(self._table.generation.endpoints)))
        for source, dispatcher in self._streams:
            run = partial(source.watch, endpoint, dispatcher.publisher_for(endpoint.name))
            failed = partial(dispatcher.failed, endpoint.name)
            tasks.keep(partial(keep_running, run, failed), failed)

    def _tell(self, change: EndpointChange, endpoint: Endpoint) -> None:
        for source, dispatcher in self._event_sources:
            self._announcements.tell(dispatcher.source, partial(dispatcher.notify, source, EndpointEvent(change, endpoint)))

    def _pace_of(self, source: PolledSource, every: int) -> Pace:
        """Only a source that says when nothing changed, and whose interval the operator left to endpick, is asked less often."""
        interval = every * self._cadence.tick_seconds
        if not source.repeats_payload or source.interval_seconds is not None:
            return Pace(1, self._counts, interval)
        longest = longest_stretch(interval, self._settings.idle_interval_seconds, self._tolerated_age_seconds)
        return Pace(longest, self._counts, interval)

    def _leave(self, name: str) -> None:
        for dispatcher in self._dispatchers:
            dispatcher.forget(name)
        watched = self._watched.pop(name)
        if self._polled:
            self._moments.leave(watched.poller.phase)
        watched.poller.stop()
        watched.tasks.cancel()
        self._leaving.append(watched.tasks)


def _some_of(waiting: deque[T]) -> list[T]:
    return [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]


def _same_server(one: Endpoint, other: Endpoint) -> bool:
    return (one.address, one.metrics_address) == (other.address, other.metrics_address)
