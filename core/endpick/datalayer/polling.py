"""Polls one endpoint: one ticking task for all its sources, and at most one poll in flight per source."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from endpick.api.datalayer import PollingSource
from endpick.api.endpoints import Endpoint
from endpick.api.plugin import Parameters
from endpick.datalayer.cadence import Cadence
from endpick.datalayer.delivery import PLUGIN_FAILURES, Delivery
from endpick.datalayer.tasks import TaskGroup


@dataclass(frozen=True, slots=True)
class PolledSource:
    """A polling source with its time limit and where its payloads go."""

    plugin: PollingSource[Parameters, object]
    timeout_seconds: float
    delivery: Delivery

    async def poll(self, endpoint: Endpoint) -> None:
        """One poll of one endpoint, delivered or counted as an error."""
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                payload = await self.plugin.poll(endpoint)
        except PLUGIN_FAILURES as problem:
            self.delivery.failed(endpoint.name, f"no answer within {self.timeout_seconds:g} s" if limit.expired() else problem)
        else:
            self.delivery.deliver(payload, endpoint)


class EndpointPoller:
    """The polling of one endpoint.

    Each poll is a task of its own, so a source that hangs delays no other; a source still busy when its turn comes misses that turn.
    """

    def __init__(self, endpoint: Endpoint, sources: tuple[PolledSource, ...], cadence: Cadence, tasks: TaskGroup) -> None:
        self.endpoint = endpoint
        """Replaced when discovery changes the labels; the next poll sees the new one."""
        self._sources = sources
        self._cadence = cadence
        self._tasks = tasks
        self._in_flight: list[asyncio.Task[None] | None] = [None] * len(sources)

    async def run(self, phase: float) -> None:
        """Poll until cancelled: everything at once, then tick by tick, the first wait stretched by `phase` (0 to 1) of a tick."""
        loop = asyncio.get_running_loop()
        tick_seconds = self._cadence.tick_seconds
        next_at = loop.time() + tick_seconds * (phase - 0.5)
        tick = 0
        while True:
            tick += 1
            for position in self._cadence.due(tick):
                self._poll_unless_busy(position)
            next_at = max(next_at + tick_seconds, loop.time())
            await asyncio.sleep(next_at - loop.time())

    def _poll_unless_busy(self, position: int) -> None:
        running = self._in_flight[position]
        if running is None or running.done():
            self._in_flight[position] = self._tasks.spawn(self._sources[position].poll(self.endpoint))
