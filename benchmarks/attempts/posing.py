"""What attempts serve as a server that means harm: pages and protocols over plain sockets or TLS, on addresses of 127/8."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from benchmarks.attempts.catalogue import Target
from benchmarks.attempts.picker import ENDPOINTS
from benchmarks.extproc.plan import endpoints_file
from endpick.transport.tls import make_self_signed

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None, port: int = 0, host: str = "0.0.0.0") -> AsyncIterator[int]:
    """A server whose every connection `serve` has; what it raises because the client hung up is not told. Gives the port.

    Args:
        serve: Has a connection until it returns.
        tls: For TLS.
        port: 0 for any.
        host: By default every address.
    """
    under_way: set[asyncio.Task[object]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            under_way.add(task)
        try:
            with suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            under_way.discard(asyncio.current_task())  # type: ignore[arg-type]
            writer.transport.abort()

    server = await asyncio.start_server(take, host, port, ssl=tls, backlog=4096, reuse_address=True)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def answering(*answers: bytes) -> Serve:
    """Each request on a connection gets the next of these, and the last again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = 0
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[min(asked, len(answers) - 1)])
            await writer.drain()
            asked += 1

    return serve


def page(body: bytes, headers: bytes = b"") -> bytes:
    """A whole answer."""
    return PLAIN + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def hostile_entries(port: int, count: int, first: int = 0) -> str:
    """Entries of an endpoint file for so many servers on one port."""
    addresses = (f"127.{66 + index // 62_500}.{index // 250 % 250}.{1 + index % 250}" for index in range(first, first + count))
    return "".join(f'- {{name: h{first + index}, address: {ip}, port: "{port}"}}\n' for index, ip in enumerate(addresses))


def write_endpoints(target: Target, *more: str) -> None:
    """Rename a new endpoint file over the old one: those that behave, and entries as they are given."""
    replace_endpoints(target, (endpoints_file(ENDPOINTS, target.model_server_port) + "".join(more)).encode())


def replace_endpoints(target: Target, content: bytes) -> None:
    """The endpoint file is this from now on."""
    place(target.folder / "endpoints.yaml", content)


def place(path: Path, content: bytes) -> None:
    """Rename a new file to a path, whatever is there."""
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


async def beside(target: Target, serve: Serve, count: int = 20, tls: ssl.SSLContext | None = None) -> None:
    """So many servers of this kind join those that behave, until the time is up."""
    async with serving(serve, tls) as port:
        write_endpoints(target, hostile_entries(port, count))
        await asyncio.sleep(max(1.0, target.seconds_left() - 1))
        write_endpoints(target)


@cache
def certificate(others: int = 0) -> bytes:
    """One that is signed by itself, with its key; as often again without one, as the rest of a chain."""
    own, key = make_self_signed()
    return own + own * others + key


def server_tls(pem: bytes, protocols: Iterable[str] = ()) -> ssl.SSLContext:
    """For a server with this certificate and key."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with NamedTemporaryFile(suffix=".pem") as file:
        file.write(pem)
        file.flush()
        tls.load_cert_chain(file.name)
    if names := list(protocols):
        tls.set_alpn_protocols(names)
    return tls
