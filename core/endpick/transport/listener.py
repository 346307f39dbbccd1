"""Listening ports: settings, sockets, and the accept loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from endpick.transport.handover import Handover, Port
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.tls import CertificateWatch, TlsSettings


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Address, TLS and limits of one listening port."""

    host: str = ""  # IPv4 or IPv6 address; empty: all interfaces
    port: int = 9002  # 0: any free port
    tls: TlsSettings | None = None  # None: plain text
    reuse_port: bool = False  # SO_REUSEPORT
    limits: Limits = field(default_factory=Limits)
    handover: Handover | None = None  # a supervisor accepts the connections
    role: Port = Port.EXT_PROC


PORTS: set[int] = set()  # bound by this process; forked children close their sockets
_BACKLOG = 1024

_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EAFNOSUPPORT: "choose an address of a family that this machine supports",
    errno.EACCES: "choose a port from 1024 on, or allow the process to bind lower ones",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files of other processes, or raise the system limit (fs.file-max)",
    errno.ENOBUFS: "the system is short of memory for sockets: end other processes",
    errno.ENOMEM: "the system is short of memory: end other processes",
}
_OTHER_ADVICE = "choose another address or port"


class ListenError(Exception):
    """Raised if an address cannot be bound; `advice` is a remedy for the operator."""

    advice = _OTHER_ADVICE

    @classmethod
    def at(cls, host: str, port: int, error: OSError) -> Self:
        """Build the error for an address from the system's error."""
        made = cls(f"cannot listen on {host or 'any address'}, port {port}: {_reason(error)}")
        made.advice = _advice(error)
        return made


def _advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror):  # its numbers are not those of errno
        return _OTHER_ADVICE
    return _ADVICE.get(error.errno or 0, _OTHER_ADVICE)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(settings: ListenSettings) -> socket.socket:
    """Bind a non-blocking socket, and listen on it; raises `ListenError`."""
    host = settings.host or "::"
    try:
        return _bound(settings, host, both_families=not settings.host)
    except OSError as error:
        if settings.host or error.errno not in _NO_IPV6:
            raise ListenError.at(settings.host, settings.port, error) from error
    try:
        return _bound(settings, "0.0.0.0", both_families=False)  # noqa: S104
    except OSError as error:
        raise ListenError.at(settings.host, settings.port, error) from error


def _bound(settings: ListenSettings, host: str, *, both_families: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both_families))
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        PORTS.add(bound.getsockname()[1])
    except OSError:
        bound.close()
        raise
    return bound


class ConnectionSource(Protocol):
    """A source of connections: a port of this process, or of its supervisor."""

    @property
    def port(self) -> int:
        """The port number that clients connect to."""

    async def accept(self) -> socket.socket:
        """Wait for the next connection; raises OSError."""

    def closed(self) -> None:
        """Release the place of an accepted connection that has ended."""

    def close(self) -> None:
        """Stop accepting connections."""


class BoundPort:
    """A port that this process has bound."""

    def __init__(self, settings: ListenSettings) -> None:
        """Bind the port; raises `ListenError`."""
        self._socket = listening_socket(settings)
        self.port: int = self._socket.getsockname()[1]

    async def accept(self) -> socket.socket:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        return accepted

    def closed(self) -> None:
        """See `ConnectionSource`."""

    def close(self) -> None:
        self._socket.close()


class _HandedPort:
    """A port of the supervisor, which hands its connections over."""

    def __init__(self, handover: Handover, port: Port) -> None:
        self._handover = handover
        self._port = port
        self.port = handover.port_numbers[port]

    async def accept(self) -> socket.socket:
        return await self._handover.accept(self._port)

    def closed(self) -> None:
        if self._port is Port.EXT_PROC:
            self._handover.closed()

    def close(self) -> None:
        """Keep the port open, because it belongs to the supervisor."""


def connection_source(settings: ListenSettings) -> BoundPort | _HandedPort:
    """Open the source of a port's connections; raises `ListenError`."""
    if settings.handover is None:
        return BoundPort(settings)
    return _HandedPort(settings.handover, settings.role)


_PAUSE_SECONDS = 1.0


class Listener:
    """The accept loop; asyncio's own server reports no failed TLS handshakes."""

    def __init__(
        self,
        source: ConnectionSource,
        max_connections: int,
        handshake_seconds: float,
        counters: TransportCounters,
        new_protocol: Callable[[], Any],
        certificate: CertificateWatch | None = None,
    ) -> None:
        self._source = source
        self._max_connections = max_connections
        self._handshake_seconds = handshake_seconds
        self._counters = counters
        self._new_protocol = new_protocol
        self._certificate = certificate
        self._connections = 0
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start accepting connections on the running event loop."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting and abandon handshakes; idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._source.close()

    def connection_closed(self) -> None:
        """Release the place of a connection; the server calls this when it has ended."""
        self._connections -= 1
        self._source.closed()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted = await self._source.accept()
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
                self._source.closed()
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
            self.connection_closed()
            self._counters.tls_handshake_failures += self._certificate is not None
