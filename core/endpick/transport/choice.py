"""Which transport serves a port: the one place that knows both."""

from __future__ import annotations

from typing import Literal

from endpick.transport.server import ListenSettings, Methods, Server

__all__ = ["TransportName", "open_server"]

TransportName = Literal["h2", "grpcio"]


def open_server(transport: TransportName, settings: ListenSettings, methods: Methods) -> Server:
    """A server of that transport, not started."""
    # Each transport is imported only if chosen: grpcio alone costs a hundred milliseconds of start-up.
    if transport == "grpcio":
        from endpick.transport.grpcio import GrpcioServer  # noqa: PLC0415

        return GrpcioServer(settings, methods)
    from endpick.transport.h2.server import H2Server  # noqa: PLC0415

    return H2Server(settings, methods)
