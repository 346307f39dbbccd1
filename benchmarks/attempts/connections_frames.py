"""Frames of HTTP/2 that mean harm: each kind in each state, header tables, settings, windows, resets and floods."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.connections import source_of
from benchmarks.attempts.gateway import HELLO, WINDOW, answered, connected, data, frame, opened
from benchmarks.attempts.second import PLAIN
from benchmarks.extproc.phased import encoded_requests
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, PRIORITY_FIELDS, FrameType
from endpick.transport.h2.hpack import encode
from endpick.transport.methods import EXT_PROC_PATH

USUAL_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": EXT_PROC_PATH.encode(),
    b":authority": b"picker",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}
_MOST = 2**31 - 1


def block(**changes: bytes) -> bytes:
    """A header block without a table: the usual fields, and these, `_` for `-`."""
    return encode({**USUAL_FIELDS, **{name.replace("_", "-").encode(): value for name, value in changes.items()}}.items())


async def said(target: Target, *words: bytes, seconds: float = 1.0, port: int = 0) -> bytes:
    """Say it on a connection of its own, in several writes; what is answered within so long."""
    async with connected(port or target.ext_proc_port, source=source_of(target)) as (reader, writer):
        for word in words:
            if writer.is_closing():
                break
            writer.write(word)
            with suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(writer.drain(), seconds)
        return await answered(reader, seconds)


def _states(target: Target) -> Iterator[bytes]:
    """What brings stream 3 of a connection into each of its states."""
    refused = frame(FrameType.WINDOW_UPDATE, bytes(4), 3)
    yield PREFACE
    yield HELLO
    yield HELLO + opened(1) + opened(3)
    yield HELLO + opened(1) + opened(3) + data(3, PLAIN[: target.rng.randrange(1, len(PLAIN))])
    yield HELLO + opened(1) + opened(3) + data(3, PLAIN)
    yield HELLO + opened(1) + opened(3) + data(3, PLAIN) + frame(FrameType.DATA, b"", 3, END_STREAM)
    yield HELLO + opened(1) + opened(3) + frames.rst_stream(3, 8)
    yield HELLO + opened(1) + opened(3) + refused
    yield HELLO + frame(FrameType.HEADERS, block()[:20], 3)
    yield HELLO + opened(1) + opened(3) + frame(FrameType.HEADERS, b"", 3, END_HEADERS | END_STREAM)
    yield HELLO + frame(FrameType.HEADERS, block(), _MOST, END_HEADERS)
    yield HELLO + opened(1) + opened(3) + frames.goaway(0, 0)


async def each_frame_in_each_state(target: Target) -> None:
    """Frames of all kinds, known or not, with odd flags, lengths and streams, for a stream in each of its states: 600 connections."""
    rng, sayings = target.rng, []
    for state in [*_states(target)] * 50:
        harm = b"".join(
            frame(
                rng.choice((*range(11), 0x10, 0xFF)),
                rng.randbytes(rng.choice((0, 1, 4, 5, 6, 8, 9, 16_384, 65_536))),
                rng.choice((0, 1, 3, 3, 3, 2, 5, _MOST, _MOST + 4)),
                rng.choice((0, 1, 4, 5, 8, 9, 0x20, 0x2D, 0xFF)),
            )
            for _ in range(rng.randrange(1, 6))
        )
        sayings.append(said(target, state, harm, opened(5, first=False) + data(5, PLAIN), seconds=0.3))
        if len(sayings) == 40:
            await asyncio.gather(*sayings, return_exceptions=True)
            sayings.clear()


async def header_tables_without_rest(target: Target) -> None:
    """Header blocks that resize the table 16,000 times each, fill it and refer to it, evict it with each field, or make it too large."""
    fill = b"".join(b"\x40\x01" + bytes([97 + at % 26]) + b"\x7f\xd1\x1e" + bytes([65 + at % 26]) * 4000 for at in range(3))
    blocks = (
        b"\x20" * 8000 + block(),
        (b"\x20\x3f\xe1\x1f" * 3000) + block(),
        b"\x3f\xe1\x1f" + fill,
        b"\xbe" * 3,
        b"\x3f\xff\xff\xff\xff\x07" + block(),
        b"".join(b"\x40\x01a\x01" + bytes([at]) for at in range(256)) * 6,
        b"\x82\x86\x84" * 4000,
        b"\xc0" * 60,
    )
    sayings = []
    for each in blocks * 5:
        again = target.rng.randrange(1, 60)
        out = b"".join(frame(FrameType.HEADERS, each, 2 * at + 1, END_HEADERS | END_STREAM) for at in range(again))
        sayings.append(said(target, HELLO, out))
    await asyncio.gather(*sayings, return_exceptions=True)


async def header_blocks_that_lie(target: Target) -> None:
    """Integers without an end, strings beyond their block, Huffman codes with wrong padding, EOS or 30 bits a byte, odd names."""
    rng = target.rng
    huffman = b"\x00\x81\x1f\x7f"
    blocks = (
        b"\xff" * 16_000,
        b"\x7f" + b"\x80" * 16_000,
        b"\x00\x7f\xff\xff\xff\xff\x0f" + b"a" * 50,
        block() + b"\x00\x05ab",
        huffman + b"\x80\xff" + b"\xff" * 15_000,
        block() + b"\x00\x01a\x84\xff\xff\xff\xff",
        block() + b"\x00\x01a\x82\x1f\x00",
        block() + b"\x00\x01a\xff\x80\x70" + b"\xff\xff\xfe\x3f" * 3600,
        block() + b"\x10\x01a\xff\x80\x70" + rng.randbytes(14_464),
        b"\x80" + block(),
        b"\xbf" + block(),
        block(A=b"x"),
        block(**{"": b"x"}),
        block(x=b"\r\nforged: 1\0"),
        block(connection=b"close", transfer_encoding=b"chunked"),
        block() + block(),
        encode([(b"a%d" % at, b"") for at in range(2000)]),
        rng.randbytes(rng.randrange(1, 16_000)),
    )
    out = [frame(FrameType.HEADERS, each, 1, END_HEADERS | rng.choice((0, END_STREAM))) for each in blocks * 4]
    for at in range(0, len(out), 12):
        await asyncio.gather(*(said(target, HELLO, each, seconds=0.3) for each in out[at : at + 12]), return_exceptions=True)


async def header_blocks_without_an_end(target: Target) -> None:
    """CONTINUATION for ever: empty, of one byte, of 16 KiB, with another frame between, after none, or kept back on 100 connections."""
    start = frame(FrameType.HEADERS, block()[:10], 1)
    endings = (
        frame(FrameType.CONTINUATION, b"", 1) * 20_000,
        b"".join(frame(FrameType.CONTINUATION, bytes([each]), 1) for each in block()[10:]),
        frame(FrameType.CONTINUATION, b"\x00\x01a\x7f\x80\x7f" + b"x" * 16_000, 1) * 100,
        frame(FrameType.CONTINUATION, b"a", 3),
        frames.ping(bytes(8), ack=False),
        frame(FrameType.HEADERS, block(), 3, END_HEADERS),
        frame(FrameType.CONTINUATION, block()[10:], 1, END_HEADERS) + frame(FrameType.CONTINUATION, b"", 1, END_HEADERS),
        b"",
    )
    sayings = [said(target, HELLO + start, target.rng.choice(endings), seconds=1.5) for _ in range(100)]
    await asyncio.gather(*sayings, return_exceptions=True)


async def settings_at_their_edges(target: Target) -> None:
    """SETTINGS with each value at its edges while 60 streams wait for their window, 10,000 values in one frame, floods, odd ACKs."""
    rng = target.rng
    waiting = PREFACE + frames.settings({4: 0}) + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 121, 2))
    edges = [(1, 0), (1, 2**32 - 1), (2, 0), (2, 1), (3, 0), (3, 2**32 - 1), (4, 0), (4, 1), (4, 65_535), (4, _MOST), (5, 16_384)]
    edges += [(5, 2**24 - 1), (6, 0), (6, 2**32 - 1), (0, 7), (8, 1), (0xFFFF, 0xFFFFFFFF)]
    wrong = [(2, 2), (4, 2**31), (5, 16_383), (5, 2**24)]
    mistake, beyond = rng.choice(wrong)
    storms = (
        b"".join(frames.settings({name: value}) for name, value in rng.choices(edges, k=99)),
        b"".join(frames.settings({4: value}) for value in (0, _MOST) * 45),
        frame(FrameType.SETTINGS, b"".join(struct.pack(">HI", *rng.choice(edges)) for _ in range(10_000))),
        frame(FrameType.SETTINGS, b"".join(struct.pack(">HI", 4, at % 2 * _MOST) for at in range(10_922))),
        frames.settings({}) * 5000,
        frame(FrameType.SETTINGS, b"", flags=ACK) * 3000,
        frame(FrameType.SETTINGS, bytes(6), flags=ACK),
        frame(FrameType.SETTINGS, bytes(5)),
        frame(FrameType.SETTINGS, bytes(6), 1),
        frames.settings({mistake: beyond}),
        frames.window_update(1, _MOST) + frames.settings({4: _MOST}),
    )
    await asyncio.gather(*(said(target, waiting, rng.choice(storms), seconds=0.8) for _ in range(40)), return_exceptions=True)


async def windows_as_weapons(target: Target) -> None:
    """300 streams that get their answers a byte at a time, windows of nothing, below nothing and beyond counting, shut for ever."""
    rng = target.rng
    ids = range(1, 601, 2)
    waiting = PREFACE + frames.settings({4: 0}) + b"".join(opened(at) + data(at, PLAIN) for at in ids)
    drips = b"".join(frames.window_update(at, 1) for _ in range(20) for at in ids)
    storms = (
        (drips, drips),
        (frames.settings({4: 40}), frames.settings({4: 0}), frames.settings({4: 41}), frames.settings({4: 1})),
        (frames.window_update(0, _MOST),),
        (b"".join(frames.window_update(at, _MOST) * 2 for at in ids),),
        (frames.window_update(0, 0),),
        (b"".join(frames.window_update(at, 0) for at in ids),),
        (b"".join(frames.window_update(at, 1 << rng.randrange(31)) for at in range(1, 5000)),),
        (frames.settings({4: WINDOW}),),
        (data(1, bytes(1 << 20)) + data(3, bytes(1 << 20)),),
        (b"".join(data(at, bytes(1 << 20), 65_000) for at in range(1, 40, 2)),),
        (),
    )
    await asyncio.gather(*(said(target, waiting, *rng.choice(storms), seconds=1.0) for _ in range(16)), return_exceptions=True)


def _ways_to_reset(at: int) -> tuple[bytes, ...]:
    """What ends a stream that is open: the client's reset, and what has the server reset it."""
    return (
        frames.rst_stream(at, 8),
        frames.rst_stream(at, 0),
        frames.rst_stream(at, 0xFFFFFFFF),
        frames.window_update(at, 0),
        frames.window_update(at, _MOST),
        frame(FrameType.PRIORITY, struct.pack(">IB", at, 0), at),
        frame(FrameType.PRIORITY, b"", at),
        frame(FrameType.HEADERS, block(), at, END_HEADERS),
        frame(FrameType.DATA, b"", at, END_STREAM) + frame(FrameType.DATA, b"", at),
        frame(FrameType.HEADERS, b"", at, END_HEADERS | END_STREAM) + frame(FrameType.HEADERS, b"", at, END_HEADERS | END_STREAM),
        data(at, b"\x01\0\0\0\x01x"),
        data(at, b"\0\xff\xff\xff\xff"),
    )


async def resets_in_all_ways(target: Target) -> None:
    """2000 streams of ten connections, each ended at once: by RST_STREAM, or by one of nine mistakes that have the server reset it."""

    async def reset(way: int) -> None:
        out = (opened(at) + (data(at, PLAIN) if at % 4 == 1 else b"") + _ways_to_reset(at)[way] for at in range(1, 4001, 2))
        await said(target, HELLO, b"".join(out), seconds=1.0)

    ways = target.rng.sample(range(len(_ways_to_reset(1))), 10)
    await asyncio.gather(*(reset(way) for way in ways), return_exceptions=True)


async def floods_of_small_frames(target: Target) -> None:
    """30,000 each of PINGs, their ACKs, priorities, unknown frames, empty DATA, padding, GOAWAY, window updates, resets: 24 connections."""
    start = HELLO + opened(1) + opened(3) + frames.window_update(3, 0)
    pads = frame(FrameType.DATA, b"\xff" + bytes(255), 1, PADDED)
    small = (
        frames.ping(b"whogoes!", ack=False),
        frames.ping(b"is there", ack=True) + frames.ping(b"draining", ack=True),
        frame(FrameType.PRIORITY, struct.pack(">IB", 0, 255), 1),
        frame(0xFA, b"", 1),
        frame(0x10, bytes(4) + b"u=9", 0),
        frame(FrameType.DATA, b"", 1),
        frame(FrameType.DATA, b"\0", 1, PADDED),
        pads,
        frame(FrameType.DATA, b"", 3),
        frame(FrameType.DATA, b"", 3, PADDED),
        frames.goaway(_MOST, 0, "x" * 200),
        frames.window_update(1, 1),
        frames.window_update(0, 1),
        frames.rst_stream(3, 8),
        frame(FrameType.PUSH_PROMISE, bytes(4) + block(), 1, END_HEADERS),
        data(1, b"\0"),
    )
    sayings = [said(target, start, each * 10_000, each * 10_000, each * 10_000) for each in target.rng.choices(small, k=24)]
    await asyncio.gather(*sayings, return_exceptions=True)


async def streams_after_goodbye(target: Target) -> None:
    """Streams after the client's GOAWAY, with ids that fall, repeat, are even, or leap to the last, that depend on themselves, 300 each."""
    rng = target.rng
    _, later = encoded_requests()
    itself = frame(FrameType.HEADERS, struct.pack(">IB", 3, 0) + block(), 3, END_HEADERS | PRIORITY_FIELDS)
    orders = (
        [*range(3, 603, 2)],
        [*range(603, 3, -2)],
        [3] * 300,
        [*range(2, 602, 2)],
        [_MOST, 3, 5, _MOST],
        [rng.randrange(3, 10_000) | 1 for _ in range(300)],
    )
    for order in orders:
        out = b"".join(frames.headers(at, later, end_stream=False) + data(at, PLAIN) for at in order)
        goodbye = rng.choice((frames.goaway(0, 0), frames.goaway(_MOST, 11, "x" * 200), itself, b""))
        await asyncio.gather(*(said(target, HELLO + opened(1) + goodbye, out, seconds=0.3) for _ in range(3)), return_exceptions=True)


async def streams_that_pile_up(target: Target) -> None:
    """Four connections with 4096 streams each, more that are refused, changes of every window over all of them, and an end by a mistake."""

    async def pile() -> None:
        out = b"".join(opened(at) for at in range(1, 9001, 2))
        changes = b"".join(frames.settings({4: value}) for value in (0, _MOST, 65_535) * 25)
        await said(target, HELLO, out, changes, frame(FrameType.PING, b"", 0), seconds=1.0)

    await asyncio.gather(*(pile() for _ in range(4)), return_exceptions=True)


ATTEMPTS = (
    Attempt(each_frame_in_each_state),
    Attempt(header_tables_without_rest),
    Attempt(header_blocks_that_lie),
    Attempt(header_blocks_without_an_end),
    Attempt(settings_at_their_edges),
    Attempt(windows_as_weapons),
    # "On `--transport grpcio`, others wait for a flood of streams, and may lose some."
    Attempt(resets_in_all_ways, transports=("h2",)),
    Attempt(floods_of_small_frames),
    Attempt(streams_after_goodbye),
    # "On `--transport grpcio`, others wait for a flood of streams, and may lose some."
    Attempt(streams_that_pile_up, transports=("h2",)),
)
