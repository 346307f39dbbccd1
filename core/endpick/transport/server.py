"""A transport: a server of gRPC methods on one port."""

from __future__ import annotations

from typing import Literal, Protocol

from endpick.transport.limits import TransportCounters
from endpick.transport.listener import ListenSettings
from endpick.transport.methods import Methods

TransportName = Literal["h2", "grpcio"]


class Server(Protocol):
    """Serves gRPC methods on one port, on the event loop that started it."""

    @property
    def counters(self) -> TransportCounters:
        """Event counts since the start."""

    @property
    def connections(self) -> int:
        """Number of clients that are connected now."""

    async def start(self) -> int:
        """Bind and serve; returns the port. Raises `ListenError` or `TlsError`."""

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new streams, wait for open ones, then close everything."""

    async def stop(self) -> None:
        """End all streams and close all connections now; idempotent."""


def open_server(transport: TransportName, settings: ListenSettings, methods: Methods) -> Server:
    """Create a server of the named transport, which the caller starts."""
    if transport == "grpcio":
        from endpick.transport.grpcio import GrpcioServer  # noqa: PLC0415 - takes 0.1 s

        return GrpcioServer(settings, methods)
    from endpick.transport.h2.server import H2Server  # noqa: PLC0415

    return H2Server(settings, methods)
