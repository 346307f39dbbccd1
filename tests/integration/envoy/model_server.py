"""A tiny HTTP/1.1 server in the place of a model server, which says what reached it and can answer in awkward ways."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from dataclasses import dataclass, field


@dataclass
class Arrived:
    """One request as it reached the model server."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)

    def described(self) -> bytes:
        return json.dumps(
            {
                "method": self.method,
                "path": self.path,
                "headers": self.headers,
                "size": len(self.body),
                "sha256": hashlib.sha256(self.body).hexdigest(),
                "trailers": self.trailers,
            }
        ).encode()


async def serve_model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handle one connection; a callback for `asyncio.start_server`."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while line := await reader.readline():
            method, path, _ = line.decode().split(" ", 2)
            arrived = Arrived(method, path, await _headers(reader))
            if path == "/duplex":
                await _repeat(reader, writer)
                continue
            if arrived.headers.get("transfer-encoding") == "chunked":
                await _read_chunks(reader, arrived)
            else:
                arrived.body = await reader.readexactly(int(arrived.headers.get("content-length", 0)))
            await _answer(arrived, writer)
            await writer.drain()
    writer.close()


async def _repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each chunk before the next."""
    _begin(writer, b"")
    while size := int((await reader.readline()).split(b";")[0], 16):
        _chunk(writer, await reader.readexactly(size))
        await reader.readexactly(2)
        await writer.drain()
    await reader.readline()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    served = arrived.headers.get("x-test-served")
    extra = f"x-test-served: {served}\r\n".encode() if served else b""
    match arrived.path.partition("?")[0]:
        case "/echo":
            _whole(writer, arrived.body, extra)
        case "/sse":
            count = int(arrived.path.partition("n=")[2])
            _begin(writer, b"content-type: text/event-stream\r\n" + extra)
            for number in range(count):
                _chunk(writer, f'data: {{"model":"internal","n":{number}}}\n\n'.encode())
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
        case "/trailers":
            _begin(writer, b"trailer: x-checksum\r\n" + extra)
            _chunk(writer, arrived.body or b"body")
            writer.write(b"0\r\nx-checksum: 42\r\n\r\n")
        case "/endless":
            _begin(writer, extra)
            while True:
                _chunk(writer, b"more")
                await writer.drain()
                await asyncio.sleep(0.01)
        case "/reset":
            raise ConnectionResetError
        case "/cookies":
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\nbusy")
        case "/empty":
            writer.write(b"HTTP/1.1 204 No Content\r\n" + extra + b"\r\n")
        case "/split":
            _begin(writer, b"content-type: application/json\r\n" + extra)
            for piece in (b'{"id":1,"mod', b'el":"inter', b'nal","rest":true}'):
                _chunk(writer, piece)
                await writer.drain()
                await asyncio.sleep(0.02)
            writer.write(b"0\r\n\r\n")
        case _:
            _whole(writer, arrived.described(), extra)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers


async def _read_chunks(reader: asyncio.StreamReader, arrived: Arrived) -> None:
    pieces = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    arrived.body = b"".join(pieces)
    arrived.trailers = await _headers(reader)


def _whole(writer: asyncio.StreamWriter, body: bytes, extra: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    writer.write(head + extra + b"\r\n" + body)


def _begin(writer: asyncio.StreamWriter, extra: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + extra + b"\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
