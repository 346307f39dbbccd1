"""Runs a data source as the collection loop does, only briefly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from endpick.api.datalayer import EndpointDiscovery, EndpointRegistry, PollingSource, PoolSource, StreamSource
from endpick.api.endpoints import Endpoint
from endpick.testing.bench import Bench, Raised
from endpick.testing.blocking import watched

LONGEST_SECONDS = 0.25
"""How long a source that goes on until it is cancelled is left to itself."""

CANCEL_SECONDS = 1.0
"""How soon after cancellation it must have ended."""


class Stubborn(Exception):  # noqa: N818 - an outcome, not an accident
    """The plugin goes on although it was cancelled."""


@asynccontextmanager
async def started(bench: Bench) -> AsyncIterator[None]:
    """The instance between `start` and `stop`."""
    await bench.instance.plugin.start()
    try:
        yield
    finally:
        await bench.instance.plugin.stop()


async def payloads_from(bench: Bench, endpoint: Endpoint) -> list[object] | Raised:
    """What the source brings from one endpoint, or the first exception it lets out."""
    plugin = bench.instance.plugin
    found: list[object] = []
    if isinstance(plugin, PollingSource):
        payload = await _briefly(bench, plugin.poll(endpoint))
        found = [payload] if payload is not None else []
    elif isinstance(plugin, StreamSource):
        found.extend(filter(_is_raised, [await _briefly(bench, plugin.watch(endpoint, found.append))]))
    elif isinstance(plugin, PoolSource):
        found.extend(filter(_is_raised, [await _briefly(bench, plugin.watch_pool(found.append))]))
    return next((one for one in found if isinstance(one, Raised)), None) or found


async def run_discovery(bench: Bench, registry: EndpointRegistry) -> object:
    """Run a discovery for a moment; None, or what it raised."""
    plugin = bench.instance.plugin
    assert isinstance(plugin, EndpointDiscovery)
    return await _briefly(bench, plugin.run(registry))


async def _briefly(bench: Bench, work: Awaitable[object]) -> object:
    """The result of the plugin's coroutine, `Raised`, or None when it was still running and was cancelled.

    Raises:
        Stubborn: it would not be cancelled.
    """

    async def guarded() -> object:
        try:
            return await work
        except (Exception, SystemExit) as problem:  # an event loop would let SystemExit end the whole process
            return Raised(problem)

    with watched(bench.watch):
        task = asyncio.ensure_future(guarded())
    done, _ = await asyncio.wait({task}, timeout=LONGEST_SECONDS)
    if not done:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not done:
        raise Stubborn
    return None if task.cancelled() else task.result()


def _is_raised(value: object) -> bool:
    return isinstance(value, Raised)
