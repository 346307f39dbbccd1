"""A listener for pushes over HTTP, with bounds on its connections: idle and half-open ones leave descriptors to the rest of the process."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES, TlsChannel
from endpick.api.turns import Turns

MAX_CONNECTIONS = 64
"""Unless told otherwise. Exporters keep one each; for one more, the one that has said nothing for longest is closed."""
FIRST_SECONDS = 10.0
"""In which the first request of a connection must have arrived, but for its body."""
IDLE_SECONDS = 120.0
"""Between two requests, unless told otherwise; exporters push every minute at least."""
_SWEEP_SECONDS = 1.0
_TURN_SECONDS = 0.002
"""For TLS, between two looks at everything else: that of an event loop does all that has come at once."""


def _is_no_clients_doing(record: logging.LogRecord) -> bool:
    """Whether a line is worth its place: what a client sends that is no HTTP is told to that client, and not to the log with a stack."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, HttpProcessingError | ConnectionError)


_log = logging.getLogger(__name__)
_log.addFilter(_is_no_clients_doing)


class Closed(StrEnum):
    """Why a connection was closed from here."""

    SLOW = "slow"
    """No request came, or its headers did not end."""
    CROWDED = "crowded"
    """Others needed its place, or all places were busy."""
    LONG = "long"
    """Its client sent more for a TLS handshake than clients have to."""


class _Refusing(asyncio.Protocol):
    """Hangs up at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


@dataclass(frozen=True, slots=True)
class PushBounds:
    """What clients of one port may keep.

    Attributes:
        connections: At the same time.
        idle_seconds: Between two requests of one.
        handshake_bytes: Sent by one for its TLS handshake.
    """

    connections: int = MAX_CONNECTIONS
    idle_seconds: float = IDLE_SECONDS
    handshake_bytes: int = MOST_HANDSHAKE_BYTES


class PushServer:
    """Listens on one address; use `serving` around what a handler of the application does."""

    def __init__(self, app: web.Application, closed: Callable[[Closed], None], bounds: PushBounds) -> None:
        """`closed` is told of each connection that is closed from here."""
        self._bounds = bounds
        # Not unpacked as it comes: aiohttp would go on with what is left of a body that was refused, for seconds.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_log,
            handle_signals=False,
            keepalive_timeout=bounds.idle_seconds + 2 * _SWEEP_SECONDS,  # later than `_sweep`, which counts
            shutdown_timeout=1.0,
            auto_decompress=False,
        )
        self._told = closed
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._quiet_since: dict[asyncio.BaseProtocol, tuple[float, float]] = {}
        """Of connections without a request under way: since when, and until when that is well."""
        self._tls: ssl.SSLContext | None = None
        self._turns = Turns(_TURN_SECONDS)
        self._shaking: dict[asyncio.BaseProtocol, TlsChannel] = {}
        """What the handshakes of connections are made on that have not been made."""

    @property
    def port(self) -> int:
        """Where it listens, once started; else 0."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; with `tls` for clients that speak it.

        Raises:
            OSError: the address cannot be had.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._tls = tls
        try:
            # After a reload with other parameters the instance before this one still listens for a moment.
            self._server = await loop.create_server(self._connection, host, port, reuse_port=True)
        except OSError:
            await self._runner.cleanup()
            raise
        self._sweep()

    async def stop(self) -> None:
        """Listen no more, and close what is open."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for channel in self._shaking.values():
            channel.abort()
        self._shaking.clear()
        await self._runner.cleanup()

    @contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """While a request is answered its connection may take its time: the handler has limits of its own."""
        connection = request.protocol
        self._quiet_since.pop(connection, None)
        try:
            yield
        finally:
            self._is_quiet(connection, self._bounds.idle_seconds)

    def _connection(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None, "the runner was set up"
        self._forget_ended()
        if len(server.connections) + len(self._shaking) >= self._bounds.connections:
            self._told(Closed.CROWDED)
            if not self._quiet_since:
                return _Refusing()
            self._abort(min(self._quiet_since, key=lambda one: self._quiet_since[one]))
        connection = cast("asyncio.BaseProtocol", server())
        self._is_quiet(connection, FIRST_SECONDS)
        if self._tls is None:
            return connection
        channel = TlsChannel(
            cast("asyncio.Protocol", connection),
            self._tls,
            FIRST_SECONDS,
            self._turns,
            "",  # one exporter after the other
            lambda too_long: self._has_no_tls(connection, too_long),
            most_bytes=self._bounds.handshake_bytes,
        )
        self._shaking[connection] = channel
        return channel

    def _has_no_tls(self, connection: asyncio.BaseProtocol, too_long: bool) -> None:
        """The handshake of a connection came to nothing."""
        self._shaking.pop(connection, None)
        self._quiet_since.pop(connection, None)
        if too_long:
            self._told(Closed.LONG)

    def _is_quiet(self, connection: asyncio.BaseProtocol, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._quiet_since[connection] = now, now + seconds

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._forget_ended()
        for connection in [one for one, (_, until) in self._quiet_since.items() if until < loop.time()]:
            self._told(Closed.SLOW)
            self._abort(connection)
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _forget_ended(self) -> None:
        server = self._runner.server
        live: set[asyncio.BaseProtocol] = set() if server is None else set(server.connections)
        for made in live.intersection(self._shaking):
            del self._shaking[made]
        live.update(self._shaking)
        now = asyncio.get_running_loop().time()
        for connection, (since, _) in tuple(self._quiet_since.items()):
            # One that was just accepted is not among the others yet.
            if connection not in live and now - since > _SWEEP_SECONDS:
                del self._quiet_since[connection]

    def _abort(self, connection: asyncio.BaseProtocol) -> None:
        self._quiet_since.pop(connection, None)
        transport = self._shaking.pop(connection, None) or getattr(connection, "transport", None)
        if transport is not None:
            transport.abort()
