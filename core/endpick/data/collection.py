"""Runs the data sources of a plan."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from endpick.api.datalayer import (
    EndpointChange,
    EndpointEvent,
    EndpointEventSource,
    PollingPoolSource,
    PollingSource,
    PoolSource,
    StreamSource,
)
from endpick.api.endpoint import Endpoint, Generation
from endpick.api.plugin import Parameters
from endpick.data.polling import PayloadDispatcher, PollCounts, PolledSource, SourceBinding, Watched, adapt_to_pool, poll_pool
from endpick.data.table import EndpointTable
from endpick.data.tasks import cancel_all, keep_running
from endpick.host.telemetry import Telemetry

DEFAULT_REFRESH_INTERVAL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Collection:
    """The data sources of a plan, and the shortest `Plugin.tolerated_age_seconds`."""

    bindings: tuple[SourceBinding, ...] = ()
    tolerated_age_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """The intervals of data collection."""

    refresh_interval_seconds: float = DEFAULT_REFRESH_INTERVAL_SECONDS  # of sources without an interval; not positive: 50 ms, as in llm-d
    idle_interval_seconds: float = 1.0  # while payloads are unchanged
    stop_grace_seconds: float = 2.0


class CollectionLoop:
    """Runs a task for each pair of endpoint and source."""

    def __init__(
        self,
        table: EndpointTable,
        collection: Collection,
        settings: CollectionSettings,
        telemetry: Telemetry,
        counts: PollCounts | None = None,
    ) -> None:
        self._table = table
        self._settings = settings
        self._watched: dict[str, Watched] = {}
        self._numbers = count()
        self._pool_tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._polled: list[PolledSource] = []
        self._streams: list[tuple[StreamSource[Parameters, object], PayloadDispatcher]] = []
        self._pool_sources: list[tuple[PollingPoolSource[Parameters, object] | PoolSource[Parameters, object], PayloadDispatcher]] = []
        refresh = settings.refresh_interval_seconds
        for binding in collection.bindings:
            if not binding.collectors:
                continue
            plugin, dispatcher = binding.source.plugin, PayloadDispatcher(binding, table, telemetry)
            if isinstance(plugin, PollingSource):
                polled = PolledSource(
                    plugin,
                    dispatcher,
                    table,
                    counts or PollCounts(),
                    refresh_seconds=refresh if refresh > 0 else DEFAULT_REFRESH_INTERVAL_SECONDS,
                    idle_seconds=settings.idle_interval_seconds,
                    tolerated_age_seconds=collection.tolerated_age_seconds,
                )
                self._polled.append(polled)
            if isinstance(plugin, StreamSource):
                self._streams.append((plugin, dispatcher))
            if isinstance(plugin, PollingPoolSource | PoolSource):
                self._pool_sources.append((plugin, dispatcher))
        self._notify = [
            PayloadDispatcher(binding, table, telemetry).bind_notify()
            for binding in collection.bindings
            if binding.collectors and isinstance(binding.source.plugin, EndpointEventSource)
        ]

    def start(self) -> None:
        """Collect data of present and later endpoints. Called once."""
        for source, dispatcher in self._pool_sources:
            if isinstance(source, PollingPoolSource):
                self._pool_tasks.append(_spawn(poll_pool(source, dispatcher)))
            else:
                watch = partial(source.watch_pool, dispatcher.publish_pool)
                self._pool_tasks.append(_spawn(keep_running(watch, partial(dispatcher.failed, ""))))
        self._table.on_changed.append(self._follow)
        self._follow(self._table.generation)

    async def stop(self) -> int:
        """Cancel all tasks; returns the number that are still running. Idempotent."""
        if self._follow in self._table.on_changed:
            self._table.on_changed.remove(self._follow)
        tasks = [*self._pool_tasks, *self._leaving, *(task for watched in self._watched.values() for task in watched.tasks)]
        self._watched.clear()
        self._pool_tasks.clear()
        return await cancel_all([task for task in tasks if not task.done()], self._settings.stop_grace_seconds)

    def _follow(self, generation: Generation) -> None:
        self._table.sent.intersection_update(endpoint.address for endpoint in generation.endpoints)
        for name in self._watched.keys() - generation.row_of.keys():
            self._leave(name)
        adapt_to_pool(self._polled, len(generation.endpoints))
        for endpoint in generation.endpoints:
            watched = self._watched.get(endpoint.name)
            if watched is not None and _is_same_server(endpoint, watched.endpoint):
                if watched.endpoint is not endpoint:
                    watched.endpoint = endpoint
                    self._announce(EndpointChange.UPDATED, endpoint)
                continue
            if watched is not None:
                self._leave(endpoint.name)
            self._join(endpoint)

    def _join(self, endpoint: Endpoint) -> None:
        watched = self._watched[endpoint.name] = Watched(endpoint, next(self._numbers), [])
        watched.tasks += [_spawn(polled.follow(watched)) for polled in self._polled]
        for source, dispatcher in self._streams:
            watch = partial(source.watch, endpoint, dispatcher.publisher_for(endpoint.name))
            watched.tasks.append(_spawn(keep_running(watch, partial(dispatcher.failed, endpoint.name))))
        self._announce(EndpointChange.ADDED, endpoint)

    def _leave(self, name: str) -> None:
        watched = self._watched.pop(name)
        for task in watched.tasks:
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._announce(EndpointChange.REMOVED, watched.endpoint)

    def _announce(self, change: EndpointChange, endpoint: Endpoint) -> None:
        for notify in self._notify:
            notify(EndpointEvent(change, endpoint))


def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def _is_same_server(endpoint: Endpoint, other: Endpoint) -> bool:
    return (endpoint.address, endpoint.metrics_address) == (other.address, other.metrics_address)
