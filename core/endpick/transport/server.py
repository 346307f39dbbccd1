"""The interface of every transport: a server that takes gRPC methods, listens on a port, and can be drained or stopped."""

from __future__ import annotations

from typing import Literal, Protocol

from endpick.requests.memory import MemoryAccount
from endpick.transport.address import ListenSettings
from endpick.transport.limits import TransportCounters
from endpick.transport.methods import Methods

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
