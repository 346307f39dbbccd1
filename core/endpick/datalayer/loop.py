"""Keeps the endpoint table current: starts and stops collection for each endpoint as the pool changes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from endpick.api.datalayer import PollingSource, PoolSource, StreamSource
from endpick.api.endpoints import Endpoint, Generation
from endpick.api.plugin import Parameters
from endpick.datalayer.cadence import PhaseSequence, cadence_of
from endpick.datalayer.collection import Collection
from endpick.datalayer.delivery import Delivery
from endpick.datalayer.polling import EndpointPoller, PolledSource
from endpick.datalayer.table import EndpointTable
from endpick.datalayer.tasks import TaskGroup, keep_running, stop_all
from endpick.observability.instruments import Instruments

DEFAULT_REFRESH_INTERVAL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """How the loop runs.

    Attributes:
        refresh_interval_seconds: For sources with no interval of their own; 50 ms when zero or negative, as in llm-d.
        stop_grace_seconds: How long `stop` waits for plugins that do not heed cancellation.
    """

    refresh_interval_seconds: float = DEFAULT_REFRESH_INTERVAL_SECONDS
    stop_grace_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class _Watched:
    """What runs for one endpoint."""

    poller: EndpointPoller
    tasks: TaskGroup


class CollectionLoop:
    """Runs every source of a plan over every endpoint of a table."""

    def __init__(self, table: EndpointTable, collection: Collection, settings: CollectionSettings, instruments: Instruments) -> None:
        self._table = table
        self._settings = settings
        self._watched: dict[str, _Watched] = {}
        self._pool_tasks = TaskGroup()
        self._leaving: list[TaskGroup] = []
        self._phases = PhaseSequence()
        self._polled: list[PolledSource] = []
        self._streams: list[tuple[StreamSource[Parameters, object], Delivery]] = []
        self._pool_sources: list[tuple[PoolSource[Parameters, object], Delivery]] = []
        for binding in collection.bindings:
            if binding.collectors:
                self._sort_in(Delivery(binding, table, instruments))
        refresh = settings.refresh_interval_seconds
        self._cadence = cadence_of(
            refresh if refresh > 0 else DEFAULT_REFRESH_INTERVAL_SECONDS, (source.plugin.interval_seconds for source in self._polled)
        )

    def start(self) -> None:
        """Collect for everybody in the table, and for whoever joins. Call it on the running event loop, once."""
        for source, delivery in self._pool_sources:
            run = functools.partial(source.watch_pool, delivery.publish_pool)
            self._pool_tasks.spawn(keep_running(run, functools.partial(delivery.failed, "")))
        self._table.on_changed.append(self._follow)
        self._follow(self._table.generation)

    async def stop(self) -> int:
        """End everything and wait for it; returns how many tasks of plugins would not end. Safe to call twice."""
        if self._follow in self._table.on_changed:
            self._table.on_changed.remove(self._follow)
        for name in tuple(self._watched):
            self._leave(name)
        leaving, self._leaving = self._leaving, []
        return await stop_all((self._pool_tasks, *leaving), self._settings.stop_grace_seconds)

    def _sort_in(self, delivery: Delivery) -> None:
        plugin = delivery.source.plugin
        if isinstance(plugin, PollingSource):
            self._polled.append(PolledSource(plugin, plugin.timeout_seconds, delivery))
        if isinstance(plugin, StreamSource):
            self._streams.append((plugin, delivery))
        if isinstance(plugin, PoolSource):
            self._pool_sources.append((plugin, delivery))

    def _follow(self, generation: Generation) -> None:
        """Bring what runs in line with who is in the pool."""
        self._leaving = [tasks for tasks in self._leaving if len(tasks)]
        for name, watched in tuple(self._watched.items()):
            row = generation.row_of.get(name)
            if row is None or not _same_server(generation.endpoints[row], watched.poller.endpoint):
                self._leave(name)
        for endpoint in generation.endpoints:
            watched_already = self._watched.get(endpoint.name)
            if watched_already is None:
                self._join(endpoint)
            else:
                watched_already.poller.endpoint = endpoint

    def _join(self, endpoint: Endpoint) -> None:
        tasks = TaskGroup()
        poller = EndpointPoller(endpoint, tuple(self._polled), self._cadence, tasks)
        self._watched[endpoint.name] = _Watched(poller, tasks)
        if self._polled:
            tasks.spawn(poller.run(self._phases.next()))
        for source, delivery in self._streams:
            run = functools.partial(source.watch, endpoint, delivery.publisher_for(endpoint.name))
            tasks.spawn(keep_running(run, functools.partial(delivery.failed, endpoint.name)))

    def _leave(self, name: str) -> None:
        tasks = self._watched.pop(name).tasks
        tasks.cancel()
        self._leaving.append(tasks)


def _same_server(one: Endpoint, other: Endpoint) -> bool:
    return (one.address, one.metrics_address) == (other.address, other.metrics_address)
