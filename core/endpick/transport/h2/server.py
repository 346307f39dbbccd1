"""The HTTP/2 server: one listening port and its connections."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from endpick.transport.h2.connection import SocketConnection
from endpick.transport.limits import TransportCounters
from endpick.transport.listener import Listener, ListenSettings, connection_source
from endpick.transport.methods import Methods
from endpick.transport.tls import CertificateWatch

__all__ = ["H2Server"]

logger = logging.getLogger(__name__)

_STOP_SECONDS: Final = 2.0
_TICK_SECONDS: Final = 1.0
_LATE_SECONDS: Final = 2.0  # later ticks are skipped: after a standstill, bytes that arrived in time are unread


class H2Server:
    """Implements `Server` with asyncio protocols, one for each connection."""

    def __init__(self, settings: ListenSettings, methods: Methods) -> None:
        self.methods = methods
        self.limits = settings.limits
        self.counters = TransportCounters()
        self._settings = settings
        self._connections: set[SocketConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._certificate: CertificateWatch | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> int:
        if self._settings.tls is not None:
            self._certificate = CertificateWatch(self._settings.tls)
        source = connection_source(self._settings)
        self._listener = Listener(
            source,
            self.limits.max_connections,
            self.limits.handshake_seconds,
            self.counters,
            lambda: SocketConnection(self),
            self._certificate,
        )
        self._listener.start()
        self._tick_later()
        return source.port

    async def drain(self, grace_seconds: float) -> None:
        self._close_listener()
        for connection in tuple(self._connections):
            connection.drain(grace_seconds)
        try:
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        except TimeoutError:
            logger.info("%d connections still have streams after %g s; ending them", len(self._connections), grace_seconds)
        await self.stop()

    async def stop(self) -> None:
        self._close_listener()
        for connection in tuple(self._connections):
            connection.end_now()
        try:
            await asyncio.wait_for(self._empty.wait(), _STOP_SECONDS)
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()

    def opened(self, connection: SocketConnection) -> None:
        """Register a connection, which calls this once its socket is open."""
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: SocketConnection) -> None:
        """Remove a connection, which calls this once its socket is closed."""
        self._connections.discard(connection)
        if self._listener is not None:
            self._listener.connection_closed()
        if not self._connections:
            self._empty.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _tick_later(self) -> None:
        due = time.monotonic() + _TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick, due)

    def _tick(self, due: float) -> None:
        now = time.monotonic()
        self._tick_later()
        if self._certificate is not None:
            self._certificate.refresh(self.counters)
        if now - due < _LATE_SECONDS:
            for connection in tuple(self._connections):
                connection.tick(now)
