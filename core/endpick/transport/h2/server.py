"""The HTTP/2 listener: one port, its connections, and their end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

from endpick.api.turns import MANY_CONNECTIONS, Turns
from endpick.requests.memory import MemoryAccount, MemoryBudget
from endpick.transport.address import ListenError, ListenSettings, listening_socket
from endpick.transport.h2.protocol import SocketConnection
from endpick.transport.limits import TransportCounters
from endpick.transport.listener import Listener
from endpick.transport.methods import Methods
from endpick.transport.sweeps import Sweeps
from endpick.transport.tls import CertificateWatch

__all__ = ["H2Server"]

logger = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


class H2Server:
    """A `Server` on asyncio protocols."""

    def __init__(self, settings: ListenSettings, methods: Methods, account: MemoryAccount | None = None) -> None:
        self.methods = methods
        self.limits = settings.limits
        self.counters = TransportCounters()
        self.memory = MemoryBudget(settings.limits.max_buffered_bytes, account)
        self.turns = Turns(settings.limits.read_seconds_per_turn)
        self.memory.account.on_drop.append(self.turns.overran)
        self._settings = settings
        self._connections: set[SocketConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: Listener | None = None
        self._sweeps = Sweeps(self._sweep)
        self._certificate: CertificateWatch | None = None

    @property
    def connections(self) -> int:
        """See `Server.connections`."""
        return len(self._connections)

    async def start(self) -> int:
        """Bind and serve; see `Server.start`."""
        if self._settings.tls is not None:
            self._certificate = CertificateWatch(self._settings.tls)
        socket = listening_socket(self._settings)
        port: int = socket.getsockname()[1]
        self._listener = Listener(
            socket, self.limits.accepting, self.counters, lambda peer: SocketConnection(self, peer), self.turns, self._certificate
        )
        try:
            self._listener.open()
        except OSError as error:
            self._listener.close()
            raise ListenError.at(self._settings.host, self._settings.port, error) from error
        self._sweeps.start()
        return port

    async def drain(self, grace_seconds: float) -> None:
        """See `Server.drain`."""
        self._close_listener()
        for connection in tuple(self._connections):
            connection.drain(grace_seconds)
        try:
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        except TimeoutError:
            logger.info("%d connections still have streams after %g s; ending them", len(self._connections), grace_seconds)
        await self.stop()

    async def stop(self) -> None:
        """See `Server.stop`."""
        self._close_listener()
        for connection in tuple(self._connections):
            connection.end_now()
        try:
            await asyncio.wait_for(self._empty.wait(), _STOP_SECONDS)
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._empty.wait()
        self._sweeps.stop()

    def admit(self, protocol: SocketConnection) -> None:
        """Take a connection in."""
        self._connections.add(protocol)
        self.turns.crowded = len(self._connections) > MANY_CONNECTIONS
        self._empty.clear()
        if self._listener is not None:
            self._listener.arrived(protocol)

    def release(self, protocol: SocketConnection) -> None:
        """Forget a connection that is gone."""
        self._connections.discard(protocol)
        self.turns.crowded = len(self._connections) > MANY_CONNECTIONS
        if self._listener is not None:
            self._listener.left(protocol)
        if not self._connections:
            self._empty.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _sweep(self, now: float) -> None:
        if self._certificate is not None:
            self._certificate.follow(self.counters)
        self._tick_some(iter(tuple(self._connections)), now)

    def _tick_some(self, connections: Iterator[SocketConnection], now: float) -> None:
        """Tell connections of the time, some in each turn: a tick looks at each stream, of which there may be hundreds of thousands."""
        ends_at = time.monotonic() + self.limits.read_seconds_per_turn
        for connection in connections:
            connection.tick(now)
            if time.monotonic() > ends_at:
                asyncio.get_running_loop().call_soon(self._tick_some, connections, now)
                return
