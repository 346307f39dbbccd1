"""The interface of every transport: a server that takes gRPC methods, listens on a port, and can be drained or stopped."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.stream import SessionFactory
from endpick.requests.memory import MemoryAccount
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.tls import TlsSettings

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_PATH = f"/{EXT_PROC_SERVICE}/Process"

TransportName = Literal["h2", "grpcio"]


class Server(Protocol):
    """One port that serves gRPC methods. Runs on the event loop it was started on."""

    @property
    def counters(self) -> TransportCounters:
        """Live counts."""

    @property
    def connections(self) -> int:
        """How many clients are connected."""

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
            TlsError: the certificate cannot be read or used.
        """

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new streams, give open ones up to `grace_seconds` to end, then close everything."""

    async def stop(self) -> None:
        """Close everything now; idempotent, also after `drain`."""


def open_server(transport: TransportName, settings: ListenSettings, methods: Methods, account: MemoryAccount | None = None) -> Server:
    """A server of the named transport, not started; `account` says when there is no memory for more streams."""
    # A transport is only imported when it is chosen: grpcio costs a hundred milliseconds of start-up.
    if transport == "grpcio":
        from endpick.transport.grpcio import GrpcioServer  # noqa: PLC0415

        return GrpcioServer(settings, methods, account)
    from endpick.transport.h2.server import H2Server  # noqa: PLC0415

    return H2Server(settings, methods, account)


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method, and how to open a session for a stream of it."""

    open_session: SessionFactory
    body_fields: frozenset[int] = frozenset()
    """The fields of its messages that may be longer than `max_envelope_bytes`, by number."""
    holds_drain: bool = True
    """False: a stream that never ends by itself (a health watch); `drain` ends it at once and does not wait for it."""


Methods = Mapping[str, Method]
"""gRPC methods by path, `/package.Service/Method`."""


_BODIES = frozenset(ProcessingRequest.DESCRIPTOR.fields_by_name[name].number for name in ("request_body", "response_body"))


def ext_proc_methods(open_session: SessionFactory) -> dict[str, Method]:
    """The ext_proc service."""
    return {EXT_PROC_PATH: Method(open_session, _BODIES)}


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """One listening port."""

    host: str = ""
    """IPv4 or IPv6 address; empty: every interface, both families."""
    port: int = 9002
    """0: any free port; `Server.start` returns it."""
    tls: TlsSettings | None = None
    """None: plain text (HTTP/2 with prior knowledge)."""
    reuse_port: bool = False
    """Let several processes listen on the same port (SO_REUSEPORT)."""
    limits: Limits = field(default_factory=Limits)


class ListenError(Exception):
    """The address cannot be bound; the message names it and says why."""

    @classmethod
    def at(cls, host: str, port: int, error: OSError) -> Self:
        """What the system said about an address; `host` empty means every interface."""
        return cls(f"cannot listen on {host or 'any address'}, port {port}: {_reason(error)}")


def _reason(error: OSError) -> str:
    """The system's own words. An event loop wraps them in a sentence of its own, and a name that is unknown has no errno."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(settings: ListenSettings) -> socket.socket:
    """A bound socket, not yet listening.

    Raises:
        ListenError: the address cannot be bound.
    """
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
    name = host.encode() if host.isascii() else host  # as text it would import tables of Unicode
    family, kind, protocol, _, address = socket.getaddrinfo(name, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both_families))
        bound.bind(address)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
