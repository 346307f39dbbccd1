"""The accept loop of a port."""

from __future__ import annotations

import asyncio
import errno

import pytest

from endpick.transport import listener
from endpick.transport.limits import TransportCounters
from endpick.transport.listener import BoundPort, Listener, ListenSettings


class Greeter(asyncio.Protocol):
    """Sends a greeting and tells its listener about the end."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def connection_made(self, transport):
        transport.write(b"hi")

    def connection_lost(self, exc):
        self._port.listener.connection_closed()
        self._port.closed.set()


class Port:
    def __init__(self, max_connections: int) -> None:
        self.bound = BoundPort(ListenSettings("127.0.0.1", 0))
        self.counters = TransportCounters()
        self.closed = asyncio.Event()
        self.listener = Listener(self.bound, max_connections, 1.0, self.counters, lambda: Greeter(self))
        self.listener.start()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.bound.port)


@pytest.mark.asyncio
async def test_connections_beyond_the_maximum_are_closed():
    port = Port(1)
    reader, writer = await port.connect()
    assert await reader.readexactly(2) == b"hi"
    refused, other = await port.connect()
    assert await refused.read() == b""
    assert port.counters.connections_refused == 1
    writer.close()
    await port.closed.wait()
    again, third = await port.connect()
    assert await again.readexactly(2) == b"hi"
    port.listener.close()
    other.close()
    third.close()


@pytest.mark.asyncio
async def test_accepting_pauses_without_descriptors(monkeypatch):
    monkeypatch.setattr(listener, "_PAUSE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    async def failing(sock):
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    port = Port(8)
    reader, writer = await port.connect()
    assert await reader.readexactly(2) == b"hi"
    assert (port.counters.accept_pauses, port.counters.connections_accepted) == (1, 1)
    port.listener.close()
    writer.close()
