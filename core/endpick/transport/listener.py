"""Accepts the connections of one port, with or without TLS, up to a maximum."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

from endpick.transport.tls import CertificateWatch

_PAUSE_SECONDS = 1.0


class AcceptCounters(Protocol):
    """The events that a listener counts."""

    connections_accepted: int
    connections_refused: int
    accept_pauses: int
    tls_handshake_failures: int


class Listener:
    """The accept loop of one port. asyncio's own server reports no failed TLS handshakes."""

    def __init__(
        self,
        bound: socket.socket,
        max_connections: int,
        handshake_seconds: float,
        counters: AcceptCounters,
        new_protocol: Callable[[], Any],
        certificate: CertificateWatch | None = None,
    ) -> None:
        """Take over a listening socket; without a certificate, connections are plain text."""
        self._socket = bound
        self._max_connections = max_connections
        self._handshake_seconds = handshake_seconds
        self._counters = counters
        self._new_protocol = new_protocol
        self._certificate = certificate
        self._connections = 0
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept connections from now on."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting and abandon handshakes; idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._socket.close()

    def connection_closed(self) -> None:
        """Must be called when a connection has ended."""
        self._connections -= 1

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except ConnectionError:
                continue
            except OSError:  # no file descriptor left
                self._counters.accept_pauses += 1
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._counters.connections_accepted += 1
            if self._connections >= self._max_connections:
                self._counters.connections_refused += 1
                accepted.close()
                continue
            self._connections += 1
            handshake = loop.create_task(self._open(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._certificate is None:
                await loop.connect_accepted_socket(self._new_protocol, accepted)
            else:
                await loop.connect_accepted_socket(
                    self._new_protocol,
                    accepted,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=self._handshake_seconds,
                )
        except OSError:
            self._connections -= 1
            self._counters.tls_handshake_failures += self._certificate is not None
