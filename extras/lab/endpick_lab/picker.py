"""The picker of a simulation: the real host, plugins and scheduler, without sockets and in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np

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
from endpick.api.request import DirectResponse
from endpick.data.polling import PayloadDispatcher
from endpick.engine.building import declared_keys
from endpick.engine.picker import Picker, PickerSettings, asks_others
from endpick.host.instance import Instance
from endpick.host.planning.plan import Plan
from endpick.host.telemetry import NullTelemetry
from endpick.requests.model import Decision, IncomingRequest, Refused, Routed
from endpick.requests.record import DecisionLog
from endpick_lab.metrics_page import SimulatedMetricsPage
from endpick_lab.pool import PooledServer, Trouble
from endpick_lab.virtual_time import VirtualLoop

MODEL: Final = "sim-model"
SCRAPE_SECONDS: Final = 0.05  # between scrapes, as `endpick serve` by default
_METRICS_SOURCE: Final = "metrics-data-source"
_READ_DIRECTLY: Final = frozenset({"core-metrics-extractor", "endpoint-health"})  # others get a page


class SimulatedPicker:
    """Decides about requests as `endpick serve` would, from the servers' metrics at the last scrape."""

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
        self._servers = servers
        self._loop = loop
        self._waiting: set[asyncio.Task[None]] = set()
        self._telemetry = NullTelemetry()
        self.picker = Picker(
            plan,
            PickerSettings(is_offline=True),
            clock=loop.time,
            telemetry=self._telemetry,
            random=random.Random(seed),  # noqa: S311 - routing needs no secrets
            decisions=decisions,
            is_shared=is_shared,
        )
        self._dispatchers: list[PayloadDispatcher] = []
        self._pages = [SimulatedMetricsPage(MODEL, server.engine.settings, server.metrics) for server in servers]
        has_adapters = any(key.name == LORA_ADAPTERS.name for key in declared_keys(plan))
        self._reads_adapters = has_adapters and any(server.engine.settings.max_loras for server in servers)

    @property
    def instances(self) -> list[Instance]:
        """The instances that run: all except those that ask other servers."""
        return [instance for instance in self.picker.instances() if not asks_others(instance)]

    @property
    def not_simulated(self) -> tuple[str, ...]:
        """The data sources that do not run."""
        sources = [binding.source for binding in self.picker.not_polled]
        return tuple(sorted(source.name for source in sources if source.type != _METRICS_SOURCE))

    async def start(self) -> None:
        """Start the plugins, and let the servers join. Raises StartRefused."""
        await self.picker.start()
        table = self.picker.table
        self._dispatchers = [
            PayloadDispatcher(binding, table, self._telemetry)
            for binding in self.picker.not_polled
            if binding.source.type == _METRICS_SOURCE and not {collector.type for collector in binding.collectors} <= _READ_DIRECTLY
        ]
        table.replace_all(server.endpoint for server in self._servers)
        settings = [server.engine.settings for server in self._servers]
        table.write_numbers(CACHE_BLOCK_SIZE, np.array([float(engine.block_size) for engine in settings]))
        table.write_numbers(CACHE_NUM_BLOCKS, np.array([float(engine.kv_blocks) for engine in settings]))
        self.scrape()

    async def stop(self) -> None:
        """Wait until every request is decided, and stop the plugins."""
        await self.picker.gate.shut_down()
        await asyncio.gather(*self._waiting)
        await self.picker.stop()

    def scrape(self) -> None:
        """Read the metrics of all servers that are not down."""
        up = [(row, server) for row, server in enumerate(self._servers) if server.trouble is not Trouble.DOWN]
        nothing = (math.nan,) * 3
        loads = np.array([nothing if server.trouble is Trouble.DOWN else server.engine.load for server in self._servers], float).T
        for key, values in zip((WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE), loads, strict=True):
            self.picker.table.write_numbers(key, values)
        if self._reads_adapters:
            for _, server in up:
                self.picker.table.write(LORA_ADAPTERS, server.endpoint, _adapters_of(server))
        for dispatcher in self._dispatchers:
            for row, server in up:
                dispatcher.deliver(MetricsPage(self._pages[row].render()), server.endpoint)
        self.picker.gate.something_changed()

    def decide(self, incoming: IncomingRequest, decided: Callable[[Decision], None]) -> None:
        """Pass the decision to `decided`: now, or later if the request has to wait."""
        decision = self.picker.decide(incoming)
        if isinstance(decision, Routed | Refused | DirectResponse):
            decided(decision)
        else:
            task = self._loop.create_task(_wait(decision, decided))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)


async def _wait(decision: Awaitable[Decision], decided: Callable[[Decision], None]) -> None:
    decided(await decision)


def _adapters_of(server: PooledServer) -> LoraAdapters:
    metrics = server.metrics()
    running, waiting = frozenset(metrics.running_adapters), frozenset(metrics.waiting_adapters)
    return LoraAdapters(running, waiting, server.engine.settings.max_loras)
