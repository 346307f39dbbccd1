"""gRPC and ext_proc that mean harm: deadlines, lengths, kinds of requests, services beside ext_proc, messages in any order."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.connections import source_of
from benchmarks.attempts.connections_frames import block, said
from benchmarks.attempts.gateway import (
    HELLO,
    answer_messages,
    answered,
    body_messages,
    connected,
    data,
    frame,
    grpc,
    headers_message,
    opened,
    request,
    send_flow_controlled,
    trailers_message,
)
from benchmarks.attempts.second import PLAIN, asked, refused
from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import END_HEADERS, END_STREAM, FrameType
from endpick.transport.methods import EXT_PROC_PATH

_CHECK = b"/grpc.health.v1.Health/Check"
_WATCH = b"/grpc.health.v1.Health/Watch"
_REFLECTION = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def message(payload: bytes, *, length: int | None = None, compressed: int = 0) -> bytes:
    """One gRPC message that says of itself what it should not."""
    return struct.pack(">BI", compressed, len(payload) if length is None else length) + payload


def asking(stream_id: int, header_block: bytes, payload: bytes = b"", *, ends: bool = False) -> bytes:
    """HEADERS and DATA of a stream of any method."""
    out = frame(FrameType.HEADERS, header_block, stream_id, END_HEADERS | (0 if payload or not ends else END_STREAM))
    return out + data(stream_id, payload) + (frame(FrameType.DATA, b"", stream_id, END_STREAM) if payload and ends else b"")


async def deadlines_of_every_unit(target: Target) -> None:
    """2000 streams whose `grpc-timeout` is 1n to 99999999H, nothing, below nothing or no number, all at once on eight connections."""
    given = (
        b"1n",
        b"0n",
        b"0S",
        b"1u",
        b"1m",
        b"250m",
        b"99999999H",
        b"999999999H",
        b"-1S",
        b"1.5S",
        b"",
        b"S",
        b"1x",
        b"\xff",
        b"1" * 9000,
    )

    async def hurry() -> None:
        payloads = target.rng.choices((b"", PLAIN, PLAIN[:40]), k=250)
        heads = [block(grpc_timeout=each) for each in target.rng.choices(given, k=250)]
        out = [asking(2 * at + 1, *each) for at, each in enumerate(zip(heads, payloads, strict=True))]
        await said(target, HELLO + b"".join(out), seconds=1.2)

    await asyncio.gather(*(hurry() for _ in range(8)), return_exceptions=True)


async def lengths_that_lie(target: Target) -> None:
    """Messages that say they are compressed, 4 GiB, longer than their stream, cut within their head, and 200,000 of no length."""
    lies = (
        message(b"x" * 100, compressed=1),
        message(b"\x1f\x8b" + bytes(100), compressed=1),
        message(b"x", compressed=255),
        message(b"x", length=2**32 - 1),
        message(b"x" * 1000, length=64 << 20),
        message(b"x" * 1000, length=(64 << 20) + 1),
        message(PLAIN[5:], length=len(PLAIN)),
        b"\0\0\0",
        message(b"") * 200_000,
        message(b"\x12\x00") * 50_000,
        message(b"\xff" * 1000) * 20,
        b"".join(message(target.rng.randbytes(target.rng.randrange(40))) for _ in range(500)),
        PLAIN + message(b"") * 1000 + PLAIN,
    )
    sayings = []
    for at in range(39):
        lie, ends = lies[at % len(lies)], target.rng.randrange(2)
        sayings.append(said(target, HELLO + asking(1, block(), target.rng.choice((b"", PLAIN)) + lie, ends=bool(ends)), seconds=1.0))
    await asyncio.gather(*sayings, return_exceptions=True)


async def requests_of_other_kinds(target: Target) -> Iterable[str]:
    """60 heads that are no gRPC: methods, content types, paths of 15 KB or with control characters, missing and doubled fields."""
    rng = target.rng
    kinds = [
        {name: value}
        for name, values in {
            ":method": (b"GET", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI", b"", b"post", b"P" * 9000),
            ":path": (
                b"",
                b"*",
                b"/",
                b"//",
                b"http://x/",
                b"/x/" + b"y" * 15_000,
                b"/\x1b[2J\r\nforged",
                _CHECK[:-1],
                b"/" + EXT_PROC_PATH.encode(),
            ),
            ":scheme": (b"", b"https", b"file", b"\xff"),
            ":authority": (b"", b"a" * 12_000, b"x\0y", b"[::1"),
            "content-type": (b"", b"text/plain", b"application/grpc+json", b"application/grpc-web", b"application/grpc" + b"x" * 9000),
            "te": (b"", b"gzip", b"trailers, gzip"),
            "grpc-encoding": (b"gzip", b"identity", b"snappy", b"\x7f"),
            "grpc-accept-encoding": (b"," * 9000,),
            "content-length": (b"0", b"1", b"-1", b"1" * 30, b"9" * 18, b"x", b""),
            "expect": (b"100-continue",),
            "grpc-message-type": (b"\n" * 20,),
            "cookie": (b"a=b; " * 2500,),
            "grpc-previous-rpc-attempts": (b"99999999999999",),
        }.items()
        for value in values
    ]
    for begin in range(0, len(kinds), 15):
        sayings = []
        for kind in kinds[begin : begin + 15]:
            head = block(**{name.replace("-", "_"): value for name, value in kind.items()})
            sayings.append(said(target, HELLO + asking(1, head, rng.choice((b"", PLAIN)), ends=True) + opened(3, first=True), seconds=0.4))
        await asyncio.gather(*sayings, return_exceptions=True)
    return refused([await asked(target.ext_proc_port)], "after heads that are no gRPC")


async def health_and_reflection_without_end(target: Target) -> None:
    """Checks, watches and reflection by the hundred on both gRPC ports: unknown services of 200 KB, junk, questions without a pause."""
    rng = target.rng
    name = rng.choice((b"", b"x", b"x" * 100, b"\xff\xfe", b"envoy.service.ext_proc.v3.ExternalProcessor", b"n" * 200_000))
    check = message((b"\x0a" + _varint(len(name)) + name) if name else b"")
    questions = (
        message(b"\x3a\x01*"),
        message(b"\x22\x2cenvoy.service.ext_proc.v3.ExternalProcessor"),
        message(b"\x1a" + _varint(60_000) + b"x" * 60_000),
        message(b"\x2a\x06\x0a\x01x\x10\x01"),
        message(rng.randbytes(300)),
        message(b""),
    )

    async def pester(port: int) -> None:
        kind = rng.choice((_CHECK, _WATCH, _REFLECTION))
        asked_for = check if kind is not _REFLECTION else rng.choice(questions) * rng.choice((1, 2000))
        out = b"".join(asking(at, block(**{":path": kind}), asked_for[: 1 << 20], ends=kind is _CHECK) for at in range(1, 60, 2))
        await said(target, HELLO, out, seconds=1.0, port=port)

    await asyncio.gather(*(pester(port) for port in (target.ext_proc_port, target.health_port) * 12), return_exceptions=True)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


async def messages_in_any_order(target: Target) -> None:
    """Right ext_proc messages in wrong orders, twice, after the end, with random bytes between, and messages nested 5000 deep."""
    rng = target.rng
    body = b'{"model":"m","prompt":"x"}'
    parts = [
        headers_message(),
        headers_message(end=True),
        *body_messages(body, 9),
        *answer_messages(b'{"usage":{"prompt_tokens":1}}', {}),
        trailers_message(),
        ProcessingRequest(),
    ]
    nested = b""
    for _ in range(5000):
        nested = b"\x1a" + _varint(len(nested)) + nested if len(nested) < 100_000 else nested

    async def tell() -> None:
        words = [grpc([rng.choice(parts)]) for _ in range(rng.randrange(1, 30))]
        if rng.randrange(2):
            words.insert(
                rng.randrange(len(words)), message(rng.choice((rng.randbytes(60), nested, b"\x42" + _varint(len(nested)) + nested)))
            )
        out = b"".join(asking(at, block(), b"".join(words), ends=bool(rng.randrange(2))) for at in range(1, 20, 2))
        await said(target, HELLO + out, seconds=0.5)

    for _ in range(4):
        await asyncio.gather(*(tell() for _ in range(20)), return_exceptions=True)


async def bodies_that_drip(target: Target) -> None:
    """400 requests on 20 connections, each told a byte of its body at a time, a byte to a message, till the connection is reset."""
    start = b"".join(opened(at) + data(at, grpc([headers_message()])) for at in range(1, 41, 2))
    drop = grpc(body_messages(b"x" * 2, 1)[:1])
    drips = b"".join(data(at, drop) for at in range(1, 41, 2))
    await asyncio.gather(*(said(target, HELLO + start, *[drips] * 60, seconds=0.5) for _ in range(20)), return_exceptions=True)


async def requests_that_are_taken_back(target: Target) -> None:
    """600 requests, each given up at a moment of its own: after its headers, in its body, before and after its pick, in its answer."""
    rng = target.rng
    whole = grpc([headers_message(), *body_messages(b'{"model":"m","prompt":"' + b"x" * 500 + b'"}', 100)])
    whole += grpc(answer_messages(b"data: {}\n\n" * 50, {"content-type": "text/event-stream"}, 50))

    async def give_up() -> None:
        words = [HELLO]
        for at in range(1, 41, 2):
            cut = rng.randrange(len(whole))
            words.append(opened(at) + data(at, whole[:cut], rng.choice((7, 500, 16_384))))
            words.append(rng.choice((frames.rst_stream(at, 8), frame(FrameType.DATA, b"", at, END_STREAM), data(at, whole[cut:]), b"")))
        await said(target, *words, seconds=0.3)

    for _ in range(3):
        await asyncio.gather(*(give_up() for _ in range(10)), return_exceptions=True)


async def large_messages_side_by_side(target: Target) -> None:
    """30 connections that each begin a message of 60 MiB and send 4 MB of it, beside ten that send one of a megabyte to its end."""
    long = 60 << 20
    half = grpc([headers_message()]) + message(b"\x22" + _varint(long - 5) + b"\x0a" + _varint(long - 10), length=long)
    large = request(b'{"model":"m","prompt":"' + b"x" * 900_000 + b'"}')

    async def send(payload: bytes) -> None:
        async with connected(target.ext_proc_port, source=source_of(target)) as (reader, writer):
            await send_flow_controlled(reader, writer, 1, payload, seconds=2)
            await answered(reader, 1)

    await asyncio.gather(*(send(half + bytes(4_000_000)) for _ in range(30)), *(send(large) for _ in range(10)), return_exceptions=True)


ATTEMPTS = (
    Attempt(deadlines_of_every_unit),
    Attempt(lengths_that_lie),
    Attempt(requests_of_other_kinds),
    Attempt(health_and_reflection_without_end),
    Attempt(messages_in_any_order),
    Attempt(bodies_that_drip),
    Attempt(requests_that_are_taken_back),
    Attempt(large_messages_side_by_side),
)
