"""A server on the loopback that answers as model servers do on a bad day: for data sources under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from endpick.api.endpoints import Endpoint

LOOPBACK = "127.0.0.1"

ANSWERS: dict[str, bytes] = {
    "an empty page": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n\x00\xff{{\xfe\n",
    "status 500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
}
"""What the server sends for each request, by what it is."""

_TURNS = 10
_KEEPS_OPEN = ("an empty page", "garbage", "status 500")


@asynccontextmanager
async def answering(kind: str) -> AsyncIterator[Endpoint]:
    """An endpoint whose server gives this answer (a key of `ANSWERS`) to every request."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            while await _request_came(reader):
                writer.write(ANSWERS[kind])
                await writer.drain()
                if kind not in _KEEPS_OPEN:
                    break
        except ConnectionError:
            return  # a client that leaves is what some of these tests are about
        finally:
            open_connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield Endpoint("default/server", LOOPBACK, server.sockets[0].getsockname()[1])
    finally:
        await _settle()  # connections that have just come are accepted first, so that they can be closed
        server.close()
        for writer in tuple(open_connections):
            writer.close()
        await server.wait_closed()
        await _settle()


@asynccontextmanager
async def nobody() -> AsyncIterator[Endpoint]:
    """An endpoint at which nobody listens, although the port was free a moment ago."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield Endpoint("default/nobody", LOOPBACK, port)


async def _settle() -> None:
    """Let the event loop do what is due."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _request_came(reader: asyncio.StreamReader) -> bool:
    """Whether a whole request head was read; False once the client has closed."""
    try:
        await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    return True
