"""Both transports on real sockets under the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest
import uvloop

from endpick.transport.limits import Limits
from endpick.transport.listener import ListenSettings
from endpick.transport.methods import EXT_PROC_PATH, ext_proc_methods
from endpick.transport.server import Server, TransportName, open_server
from endpick.transport.services import HealthBoard, health_methods, reflection_methods
from endpick.transport.tls import TlsSettings
from integration.transport.toy import Log, toy_sessions


@dataclass
class Serving:
    """A started server and the log of its sessions."""

    server: Server
    port: int
    log: Log
    board: HealthBoard
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self, *options: tuple[str, object]) -> grpc.aio.Channel:
        """A new connection; by default, grpcio shares one between equal channels."""
        separate = [("grpc.use_local_subchannel_pool", 1), *options]
        channel = grpc.aio.insecure_channel(self.address, options=separate)
        self.channels.append(channel)
        return channel

    def call(self, *options: tuple[str, object], **arguments: object):
        """A new stream on a new connection."""
        return self.stream(self.channel(*options), **arguments)

    def stream(self, channel: grpc.aio.Channel, **arguments: object):
        return channel.stream_stream(EXT_PROC_PATH)(**arguments)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, and in modules about sockets asyncio's loop as well: the two differ in how connections end."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.stem in ("test_tls", "test_h2_bad_input"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


Open = Callable[..., AbstractAsyncContextManager[Serving]]


@asynccontextmanager
async def opened(
    transport: TransportName,
    *,
    host: str = "127.0.0.1",
    tls: TlsSettings | None = None,
    limits: Limits | None = None,
    reuse_port: bool = False,
) -> AsyncIterator[Serving]:
    log, board = Log(), HealthBoard()
    settings = ListenSettings(host=host, port=0, tls=tls, reuse_port=reuse_port, limits=limits or Limits())
    methods = ext_proc_methods(toy_sessions(log)) | health_methods(board)
    server = open_server(transport, settings, methods | reflection_methods(methods))
    serving = Serving(server, await server.start(), log, board)
    try:
        yield serving
    finally:
        for channel in serving.channels:
            await channel.close()
        await server.stop()
        await asyncio.sleep(0)


@pytest.fixture(params=["h2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


@pytest.fixture
def open_transport(transport: TransportName) -> Open:
    """Open a server of either transport."""
    return lambda **settings: opened(transport, **settings)


@pytest.fixture
def open_h2() -> Open:
    """Open a server of the h2 transport."""
    return lambda **settings: opened("h2", **settings)
