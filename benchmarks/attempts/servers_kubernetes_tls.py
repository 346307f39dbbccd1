"""API servers of Kubernetes that are asked over TLS, and watched over HTTP/2; as a module, one that tells the truth."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Awaitable, Callable

from benchmarks.attempts.api_server import HOST, PODS, PORT, ApiServer, Asked, Lie, config, event, kubeconfig, pod
from benchmarks.attempts.catalogue import Attempt, Run, Target
from benchmarks.attempts.gateway import MEBIBYTE
from benchmarks.attempts.posing import Serve, certificate, server_tls, serving
from benchmarks.attempts.servers_tls import shaken, small_chain
from endpick.transport.h2 import frames
from endpick.transport.h2.hpack import encode

_DATA, _HEADERS, _PRIORITY, _SETTINGS, _PUSH, _CONTINUATION, _UNKNOWN = 0, 1, 2, 4, 5, 9, 99
_END_HEADERS, _PADDED = 4, 8
_HEAD = encode([(b":status", b"200"), (b"content-type", b"application/json")])
_PIECE = 256 * 1024

Watched = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What becomes of a watch that was asked for over HTTP/2, and of which nothing was answered."""


def _frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 1) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def _answered(block: bytes = _HEAD) -> bytes:
    return _frame(_HEADERS, block, _END_HEADERS)


async def _honest(_asked: Asked, _writer: asyncio.StreamWriter) -> bool:
    return False


def _over_tls(server: ApiServer, watched: Watched | None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if watched is None or writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            await server.serve(reader, writer)
            return
        await reader.read(65_536)
        writer.write(frames.settings({}))
        await watched(reader, writer)

    return serve


async def _beside(target: Target, watched: Watched | None, lie: Lie = _honest, pem: bytes = b"", tickets: int = 2) -> list[str]:
    """Until the time is up; says what was asked for too often."""
    server = ApiServer(target.model_server_port, lie)
    tls = server_tls(pem or certificate(), () if watched is None else ("h2", "http/1.1"))
    tls.num_tickets = tickets
    async with serving(_over_tls(server, watched), tls, PORT, HOST):
        await asyncio.sleep(max(1.0, target.seconds_left()))
    return list(server.hot())


_FLOODS = (
    frames.ping(b"12345678", ack=False),
    frames.ping(b"12345678", ack=True),
    frames.settings({}),
    _frame(_SETTINGS, b"\0\x63\0\0\0\1" * 2000, stream_id=0),
    frames.window_update(0, 1),
    frames.window_update(1, 1),
    _frame(_DATA),
    _frame(_DATA, b"\n"),
    _frame(_DATA, b"\xff" + b"\0" * 255, _PADDED),
    _frame(_PRIORITY, b"\0\0\0\0\1"),
    _frame(_UNKNOWN, b"x"),
    _frame(_UNKNOWN, b"x" * 16_384),
    _frame(_HEADERS, encode([(b":status", b"103")]), _END_HEADERS),
    _frame(_PUSH, b"\0\0\0\2" + _HEAD, _END_HEADERS),
    _frame(_CONTINUATION, b"x" * 100),
)


async def frames_without_end(target: Target) -> list[str]:
    """Watches answer with a frame of one kind as fast as it is taken: PING, SETTINGS, empty DATA, padding, 103 before any answer."""

    async def watched(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        one = target.rng.choice(_FLOODS)
        if target.rng.random() < 0.6:
            writer.write(_answered())
        while True:
            writer.write(one * max(1, _PIECE // len(one)))
            await writer.drain()
            await asyncio.sleep(0)  # where all is taken at once, nothing waits

    return await _beside(target, watched)


async def answers_to_pings_that_are_not_taken(target: Target) -> list[str]:
    """Watches send PING and DATA without end, and read nothing of what they are answered."""

    async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        writer.write(_answered())
        one = frames.ping(b"12345678", ack=False) + _frame(_DATA, b"\n" * target.rng.choice((0, 1, 100)))
        while not reader.at_eof():
            writer.write(one * (_PIECE // len(one)))
            await writer.drain()
            await asyncio.sleep(0)

    return await _beside(target, watched)


async def header_fields_that_are_none(target: Target) -> list[str]:
    """Watches answer with blocks that break off, numbers without an end, bytes beyond ASCII, odd statuses, a megabyte of names."""
    known = _HEAD + encode([(b"a", b"b" * 30)]) * 400
    blocks = (
        _HEAD + b"\0\x05",
        _HEAD + b"\xff" * 16_000,
        _HEAD + b"\0\x01a\x7f\xff\xff\xff\xff\x7f",
        _HEAD + encode([(b"x", b"\xff\xfe"), (b"\xc3\xa9", b"\0\n")]),
        _HEAD + b"\xbe" * 16_000,
        *(encode([(b":status", status)]) for status in (b"", b"abc", b"-1", "²00".encode(), b"9" * 5000, b"1000", b"0")),
        encode([(b"content-type", b"application/json")]),
        encode([(b":status", b"429"), (b"retry-after", b"9" * 12_000)]),
        known[:16_000],
        b"",
    )

    async def watched(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        block = target.rng.choice(blocks)
        if target.rng.random() < 0.2:
            block = _HEAD + target.rng.randbytes(40)
        if target.rng.random() < 0.2:
            writer.write(_frame(_HEADERS, block) + _frame(_CONTINUATION, block) * 70)
        writer.write(_answered(block) + _frame(_DATA, b"{}\n"))
        await writer.drain()
        await asyncio.sleep(0.2)

    return await _beside(target, watched)


async def events_in_pieces(target: Target) -> list[str]:
    """Watches send real events a byte at a time, and events of megabytes, beyond the window that they were given as well."""
    lines = [
        event(pod(f"p{number}", "10.1.2.3", annotations={"a": "x" * size})) for number, size in enumerate((10, MEBIBYTE, 3 * MEBIBYTE))
    ]

    async def watched(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, size = target.rng.choice(lines), target.rng.choice((1, 7, 16_384))
        writer.write(_answered())
        while True:
            for begin in range(0, len(line), _PIECE):
                piece = line[begin : begin + _PIECE]
                writer.write(b"".join(_frame(_DATA, piece[at : at + size]) for at in range(0, len(piece), size)))
                await writer.drain()
                await asyncio.sleep(0)

    return await _beside(target, watched)


async def handshakes_and_chains(target: Target) -> list[str]:
    """It shows 400 certificates or makes 2000 tickets at each handshake, with HTTP/2 and without, and hangs up after each answer."""

    async def lie(asked: Asked, _writer: asyncio.StreamWriter) -> bool:
        if asked.path != PODS or asked.watches:
            raise EOFError
        return False

    async def watched(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_answered())

    pem = small_chain(400) if target.rng.random() < 0.5 else certificate()
    return await _beside(target, target.rng.choice((watched, None)), lie, pem, 2000)


async def records_that_hold_little(target: Target) -> None:
    """To lists as well as to watches it answers with records of one byte, or with thousands of changes of TLS's key, at one moment."""
    context = server_tls(certificate())
    small = target.rng.random() < 0.5

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with shaken(context, reader, writer) as records:
            records.tls.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
            writer.write(records.taken())
            while True:
                writer.write(records.of_one_byte(b"#" * 11_000) if small else records.key_updates(10_000))
                await writer.drain()
                await asyncio.sleep(0.02)

    async with serving(serve, None, PORT, HOST):
        await asyncio.sleep(max(1.0, target.seconds_left()))


def _attempt(run: Run) -> Attempt:
    files = {"kubeconfig": kubeconfig("https")}
    return Attempt(run, config=config(), files=files, until_serving="benchmarks.attempts.servers_kubernetes_tls")


ATTEMPTS = (
    _attempt(frames_without_end),
    _attempt(answers_to_pings_that_are_not_taken),
    _attempt(header_fields_that_are_none),
    _attempt(events_in_pieces),
    _attempt(handshakes_and_chains),
    _attempt(records_that_hold_little),
)


async def _tell_the_truth(model_server_port: int) -> None:
    async def quiet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_answered())
        await asyncio.Event().wait()

    tls = server_tls(certificate(), ("h2", "http/1.1"))
    async with serving(_over_tls(ApiServer(model_server_port, _honest), quiet), tls, PORT, HOST):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_tell_the_truth(int(sys.argv[1])))
