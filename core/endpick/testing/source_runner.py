"""Runs data sources as the collection loop does, only briefly, against a server that behaves badly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
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
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick.api.endpoint import Endpoint
from endpick.host.failures import PLUGIN_ERRORS
from endpick.testing.bench import Bench, Raised
from endpick.testing.side_effects import watched

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
    elif isinstance(plugin, PollingPoolSource):
        payload = await _briefly(bench, plugin.poll_pool())
        found = [payload] if payload is not None else []
    elif isinstance(plugin, StreamSource):
        found.extend(filter(_is_raised, [await _briefly(bench, plugin.watch(endpoint, found.append))]))
    elif isinstance(plugin, PoolSource):
        found.extend(filter(_is_raised, [await _briefly(bench, plugin.watch_pool(found.append))]))
    elif isinstance(plugin, EndpointEventSource):
        told = [bench.call(plugin.notify, EndpointEvent(change, endpoint)) for change in EndpointChange]
        found.extend(payload for payload in told if payload is not None)
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
        except PLUGIN_ERRORS as problem:  # an event loop would let SystemExit end the whole process
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


LOOPBACK = "127.0.0.1"

ANSWERS: dict[str, bytes] = {
    "an empty page": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n\x00\xff{{\xfe\n",
    "status 500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
}
"""What the server sends for each request, by what it is."""

_TURNS = 10
_KEEPS_OPEN = ("an empty page", "garbage", "status 500")


@asynccontextmanager
async def answering(kind: str) -> AsyncIterator[Endpoint]:
    """An endpoint whose server gives this answer (a key of `ANSWERS`) to every request."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            while await _request_came(reader):
                writer.write(ANSWERS[kind])
                await writer.drain()
                if kind not in _KEEPS_OPEN:
                    break
        except ConnectionError:
            return  # a client that leaves is what some of these tests are about
        finally:
            open_connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield Endpoint("default/server", LOOPBACK, server.sockets[0].getsockname()[1])
    finally:
        await _settle()  # connections that have just come are accepted first, so that they can be closed
        server.close()
        for writer in tuple(open_connections):
            writer.close()
        await server.wait_closed()
        await _settle()


@asynccontextmanager
async def no_server() -> AsyncIterator[Endpoint]:
    """An endpoint at which no server listens, although the port was free a moment ago."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield Endpoint("default/no-server", LOOPBACK, port)


async def _settle() -> None:
    """Let the event loop do what is due."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _request_came(reader: asyncio.StreamReader) -> bool:
    """Whether a whole request head was read; False once the client has closed."""
    try:
        await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    return True


T = TypeVar("T")

GRACE_SECONDS = 0.5
"""How long tasks that were left over may take to be cancelled."""


def run(work: Coroutine[object, object, T]) -> T:
    """As `asyncio.run`, which would wait for ever for a task that ignores its cancellation: this gives it up."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # what is left over is reported as findings
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=GRACE_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
