"""The port for people and scrapers: metrics, and whether requests are served, also while other clients hold the port's connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from endpick.observability.exposition import page_of
from endpick.transport.limits import AcceptLimits
from endpick.transport.listener import Listener
from endpick.transport.server import ListenError, ListenSettings, listening_socket

_COMPRESSED_AT_ONCE_BYTES = 16 * 1024
"""A longer page is compressed in another thread, so that no request waits for it."""
_SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AdminLimits:
    """Limits of the port; a scraper asks for one page at a time, and keeps its connection or not."""

    max_connections: int = 32
    """For one more, one without a request is closed."""
    max_peer_share: float = 1.0
    header_seconds: float = 10.0
    """From the first byte of a request to its last header."""
    idle_seconds: float = 75.0
    """Without a request; longer than scrapers usually wait between two."""
    max_request_bytes: int = 16 * 1024
    """From one request to the next."""

    @property
    def accepting(self) -> AcceptLimits:
        """Those of the listening socket; it takes what others leave to it."""
        flag = "--metrics-max-connections"
        return AcceptLimits(self.max_connections, self.max_peer_share, 0.0, 0, flag, flag)


@dataclass(slots=True)
class AdminCounters:
    """Monotonic counts since start."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Beyond `--metrics-max-connections`, and all were busy."""
    connections_refused_peer: int = 0
    """Never: one address may have all connections of this port."""
    connections_evicted: int = 0
    """Connections without a complete request that were closed because others needed the room."""
    accept_pauses: int = 0
    """Times that accepting paused because no file descriptor was left."""
    tls_handshake_failures: int = 0
    """Never: this port is not encrypted."""
    header_timeouts: int = 0
    """Requests whose headers were not complete in `--metrics-header-timeout`."""
    idle_connections: int = 0
    """Connections without a request for `--metrics-idle-timeout`."""
    requests_too_large: int = 0
    """Beyond `--metrics-max-request`."""

    def snapshot(self) -> dict[str, int]:
        """Every count by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class _SharedScrape:
    """The page that is being written: scrapers that ask meanwhile get the same, so that many cost what one does."""

    def __init__(self, exposed: Collector) -> None:
        self._exposed = exposed
        self._writing: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(page_of(self._exposed))
        return await asyncio.shield(self._writing)


def admin_application(exposed: Collector, report: Callable[[], tuple[bool, str]]) -> web.Application:
    """`/metrics`, and `/healthz`: 200 while `report` says that the process is ready, else 503; with the text that it gives."""
    scrape = _SharedScrape(exposed)

    async def metrics(_request: web.Request) -> web.Response:
        page = await scrape.page()
        response = web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST}, zlib_executor_size=_COMPRESSED_AT_ONCE_BYTES)
        response.enable_compression()
        return response

    async def healthz(_request: web.Request) -> web.Response:
        ready, text = report()
        return web.Response(text=text, status=200 if ready else 503)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/healthz", healthz)
    return application


class AdminServer:
    """Serves an application on one port, beside the data plane."""

    def __init__(self, application: web.Application, host: str, port: int, limits: AdminLimits | None = None) -> None:
        """`host` empty: every interface; `port` 0: any free one."""
        self._connections: dict[asyncio.BaseTransport, _Connection] = {}
        application.middlewares.append(_watching(self._connections))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        self._address = ListenSettings(host, port)
        self.limits = limits or AdminLimits()
        self.counters = AdminCounters()
        self._listener: Listener | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
        """
        socket = listening_socket(self._address)
        port: int = socket.getsockname()[1]
        await self._runner.setup()
        self._listener = Listener(socket, self.limits.accepting, self.counters, lambda: _Connection(self, self._handler()))
        try:
            self._listener.open()
        except OSError as error:
            await self.stop()
            raise ListenError.at(self._address.host, self._address.port, error) from error
        self._sweep()
        return port

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._runner.cleanup()

    def opened(self, transport: asyncio.BaseTransport, connection: _Connection) -> None:
        """A client has connected."""
        self._connections[transport] = connection
        if self._listener is not None:
            self._listener.arrived(connection)

    def closed(self, transport: asyncio.BaseTransport, connection: _Connection) -> None:
        """A client is gone."""
        del self._connections[transport]
        if self._listener is not None:
            self._listener.left(connection)

    def _handler(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server()

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)
        now = time.monotonic()
        for connection in tuple(self._connections.values()):
            connection.tick(now)


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _watching(connections: Mapping[asyncio.BaseTransport, _Connection]) -> Middleware:
    """A middleware that tells the connection of each request when its answer begins and ends."""

    @web.middleware
    async def watched(request: web.Request, handler: _Handler) -> web.StreamResponse:
        connection = None if request.transport is None else connections.get(request.transport)
        if connection is None:
            return await handler(request)
        connection.request_begins()
        try:
            return await handler(request)
        finally:
            connection.request_ends()

    return watched


class _Connection(asyncio.Protocol):
    """Passes bytes on to aiohttp, and closes a connection that takes too long, or says too much, for one request."""

    def __init__(self, owner: AdminServer, handler: asyncio.Protocol) -> None:
        self._owner = owner
        self._handler = handler
        self._transport: asyncio.Transport
        self._idle_since = time.monotonic()
        self._busy = False
        self._served = False
        self._asking_since: float | None = None
        """When the first byte of a request came that has not begun to be answered."""
        self._asked_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(transport, self)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """A piece of a request, or several."""
        self._asked_bytes += len(data)
        if self._asked_bytes > self._owner.limits.max_request_bytes:
            self._owner.counters.requests_too_large += 1
            self._transport.abort()
            return
        if self._asking_since is None:
            self._asking_since = time.monotonic()
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends nothing any more."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client takes what it is sent again."""
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._owner.closed(self._transport, self)
        self._handler.connection_lost(exc)

    def request_begins(self) -> None:
        """A request is complete, and is being answered."""
        self._busy = True
        self._asking_since = None
        self._asked_bytes = 0

    def request_ends(self) -> None:
        """Its answer is there; the client has yet to read it."""
        self._busy = False
        self._served = True
        self._idle_since = time.monotonic()

    def idle_since(self) -> float | None:
        """See `Guest.idle_since`."""
        return None if self._busy else self._idle_since

    def served(self) -> bool:
        """See `Guest.served`."""
        return self._served

    def evict(self) -> None:
        """See `Guest.evict`."""
        self._transport.abort()

    def tick(self, now: float) -> None:
        """About once a second: close the connection if it has taken too long."""
        limits, counters = self._owner.limits, self._owner.counters
        if self._busy:
            return
        if self._asking_since is not None and now - self._asking_since > limits.header_seconds:
            counters.header_timeouts += 1
            self._transport.abort()
        elif now - self._idle_since > limits.idle_seconds:
            counters.idle_connections += 1
            self._transport.abort()
