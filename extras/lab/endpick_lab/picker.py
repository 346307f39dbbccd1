"""The picker of a simulation: the real host, plugins and scheduler, without sockets and in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from prometheus_client.registry import CollectorRegistry

from endpick.api import DataCollector, DataSource
from endpick.api.access import Access
from endpick.api.discovery import EndpointDiscovery
from endpick.api.keys import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    LoraAdapters,
)
from endpick.api.metrics import MetricsPage
from endpick.api.plugin import PluginContext
from endpick.api.request import DirectResponse
from endpick.data.collection import CollectionLoop, CollectionSettings
from endpick.data.polling import PayloadDispatcher
from endpick.data.table import EndpointTable
from endpick.host.instance import Instance, instance_logger, scope_of
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.telemetry import NullTelemetry
from endpick.requests.director import Director
from endpick.requests.memory import Memory
from endpick.requests.model import Decision, IncomingRequest, Refused, Routed
from endpick.requests.record import DecisionLog
from endpick.requests.waiting import FlowGate
from endpick.serve.deployment import (
    StartRefused,
    build_plan,
    compile_collection,
    compile_plan,
    declared_keys,
    start_instances,
    stop_instances,
)
from endpick.serve.pool_metrics import FlowControlMetrics
from endpick_lab.metrics_page import SimulatedMetricsPage
from endpick_lab.pool import PooledServer, Trouble
from endpick_lab.virtual_time import VirtualLoop

MODEL: Final = "sim-model"
SCRAPE_SECONDS: Final = 0.05  # between scrapes, as `endpick serve` by default
_METRICS_SOURCE: Final = "metrics-data-source"
_READ_DIRECTLY: Final = frozenset({"core-metrics-extractor", "endpoint-health"})  # others get a page
_COLLECTING: Final = frozenset({DataSource, DataCollector})


class SimulatedPicker:
    """Decides about requests as `endpick serve` would, with what it read from the servers at the last scrape."""

    def __init__(
        self,
        plan: Plan,
        servers: Sequence[PooledServer],
        loop: VirtualLoop,
        seed: int,
        *,
        is_shared: bool = False,
        decisions: DecisionLog | None = None,
    ) -> None:
        """Build a plan. Raises StartRefused."""
        self._servers = servers
        self._loop = loop
        self._waiting: set[asyncio.Task[None]] = set()
        draws = random.Random(seed)  # noqa: S311 - routing needs no secrets
        keys = {key.name: key for key in declared_keys(plan)}
        telemetry, clock = NullTelemetry(), loop.time
        self.table = EndpointTable(clock, keys.values())
        self.table.rules.configure(plan.models)

        def context_for(planned: PlannedInstance) -> PluginContext:
            columns = self.table.writer(scope_of(planned.name, planned.subscriptions))
            own = random.Random(draws.random())  # noqa: S311
            return PluginContext(own, clock, instance_logger(planned.loaded, planned.name), columns=columns, is_shared=is_shared)

        built = build_plan(plan, context_for)
        if isinstance(built, tuple):
            raise StartRefused(*built)
        self.instances = [one for one in built.values() if not _asks_others(one)]
        access, memory = Access(on_violation=telemetry.undeclared_access), Memory()
        self._gate = FlowGate(self.table, access, clock, memory, lambda: FlowControlMetrics(CollectorRegistry(), "", 100, lambda: None))
        self._director = Director(
            compile_plan(plan, built, telemetry),
            self.table,
            telemetry,
            clock,
            random=random.Random(draws.random()),  # noqa: S311
            access=access,
            memory=memory,
            rules=self.table.rules,
            gate=self._gate,
            decisions=decisions,
        )
        collection = compile_collection(plan, built)
        bindings = [one for one in collection.bindings if not _asks_others(one.source)]
        self._collection = CollectionLoop(self.table, replace(collection, bindings=tuple(bindings)), CollectionSettings(), telemetry)
        left_out = [one for one in collection.bindings if _asks_others(one.source)]
        self.not_simulated = tuple(sorted(one.source.name for one in left_out if one.source.type != _METRICS_SOURCE))
        self._dispatchers = [
            PayloadDispatcher(one, self.table, telemetry)
            for one in left_out
            if one.source.type == _METRICS_SOURCE and not {each.type for each in one.collectors} <= _READ_DIRECTLY
        ]
        self._pages = [SimulatedMetricsPage(MODEL, server.engine.settings, server.metrics) for server in servers]
        self._reads_adapters = LORA_ADAPTERS.name in keys and any(server.engine.settings.max_loras for server in servers)

    async def start(self) -> None:
        """Let the servers join, and start the plugins. Raises StartRefused."""
        self.table.replace_all(server.endpoint for server in self._servers)
        settings = [server.engine.settings for server in self._servers]
        self.table.write_numbers(CACHE_BLOCK_SIZE, np.array([float(one.block_size) for one in settings]))
        self.table.write_numbers(CACHE_NUM_BLOCKS, np.array([float(one.kv_blocks) for one in settings]))
        self.scrape()
        await start_instances(self.instances)
        self._collection.start()

    async def stop(self) -> None:
        """Stop the plugins."""
        await self._gate.shut_down()
        await asyncio.gather(*self._waiting)
        await self._collection.stop()
        await stop_instances(self.instances)

    def scrape(self) -> None:
        """Read the metrics of all servers that are not down."""
        up = [(row, server) for row, server in enumerate(self._servers) if server.trouble is not Trouble.DOWN]
        nothing = (math.nan,) * 3
        loads = np.array([nothing if server.trouble is Trouble.DOWN else server.engine.load for server in self._servers], float).T
        for key, values in zip((WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE), loads, strict=True):
            self.table.write_numbers(key, values)
        if self._reads_adapters:
            for _, server in up:
                self.table.write(LORA_ADAPTERS, server.endpoint, _adapters_of(server))
        for dispatcher in self._dispatchers:
            for row, server in up:
                dispatcher.deliver(MetricsPage(self._pages[row].render()), server.endpoint)
        self._gate.something_changed()

    def decide(self, incoming: IncomingRequest, decided: Callable[[Decision], None]) -> None:
        """Pass the decision to `decided`: now, or later if the request has to wait."""
        decision = self._director.decide(incoming)
        if isinstance(decision, Routed | Refused | DirectResponse):
            decided(decision)
        else:
            task = self._loop.create_task(_wait(decision, decided))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)


def _asks_others(instance: Instance) -> bool:
    kinds = set(instance.kinds)
    return EndpointDiscovery in kinds or (DataSource in kinds and kinds <= _COLLECTING)


async def _wait(decision: Awaitable[Decision], decided: Callable[[Decision], None]) -> None:
    decided(await decision)


def _adapters_of(server: PooledServer) -> LoraAdapters:
    metrics = server.metrics()
    running, waiting = frozenset(metrics.running_adapters), frozenset(metrics.waiting_adapters)
    return LoraAdapters(running, waiting, server.engine.settings.max_loras)
