"""Replies that are long by what the picker adds to them, or many at one moment, and that are not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened, request
from benchmarks.attempts.posing import hostile_entries, write_endpoints
from benchmarks.attempts.second import PLAIN
from benchmarks.attempts.streams import exchanged, replies
from endpick.transport.h2 import frames

_SCORES = "x-gateway-destination-endpoint-scores"
_SHORT = b'{"model":"m","prompt":"p"}'


async def scores_of_a_large_pool(target: Target) -> Iterable[str]:
    """Each reply tells what 1500 endpoints scored, to forty requests at one moment on each of nine connections, of which three are read."""
    write_endpoints(target, hostile_entries(target.model_server_port, 1500))
    await asyncio.sleep(2)
    told = 0

    async def unread() -> None:
        async with connected(target.ext_proc_port, source=f"127.0.5.{target.rng.randrange(1, 250)}") as (reader, writer):
            shut = frames.settings({4: target.rng.choice((0, 65_535))})
            writer.write(frames.PREFACE + shut + b"".join(opened(each) + data(each, PLAIN) for each in range(1, 80, 2)))
            await writer.drain()
            await asyncio.sleep(2)
            await answered(reader, 0.1)

    async def read() -> None:
        nonlocal told
        heard = await exchanged(target.ext_proc_port, [request(_SHORT)] * 40, 4.0)
        for stream in heard.values():
            first = replies(stream)[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields[_SCORES]
            told += len(first.struct_value.fields) > 1000

    await asyncio.gather(*(unread() for _ in range(6)), *(read() for _ in range(3)))
    return [] if told else ["the attempt was none: no reply told of a thousand scores"]


async def refusals_at_one_moment(target: Target) -> Iterable[str]:
    """Three thousand bodies that will be refused lack a byte, which comes for all of them at one moment; no window is open."""
    name = b"m" * 1100
    payload = request(b'{"model":"' + name + b'","prompt":"p"}', {REWRITE: "r" * 1000})
    streams = range(1, 600, 2)
    ready = asyncio.Barrier(10)
    refused = 0

    async def held(at: int) -> None:
        nonlocal refused
        async with connected(target.ext_proc_port, source=f"127.0.6.{1 + at}") as (reader, writer):
            writer.write(frames.PREFACE + frames.settings({4: 0}) + frames.window_update(0, 2**30))
            for each in streams:
                writer.write(opened(each) + data(each, payload[:-1]))
                await writer.drain()
            await answered(reader, 0.3)
            await ready.wait()
            writer.write(b"".join(data(each, payload[-1:]) for each in streams))
            await answered(reader, 1)
            writer.write(frames.settings({4: 1 << 20}))
            heard = await answered(reader, 2, 1 << 24)
            refused += heard.count(b"inference error")

    async with asyncio.timeout(15):
        await asyncio.gather(*(held(at) for at in range(10)))
    return [] if refused > 1000 else [f"the attempt was none: {refused} requests were refused"]


async def picks_without_a_pause_on_one_connection(target: Target) -> Iterable[str]:
    """Four thousand streams of one connection are picked for and stay, and for each their gateway sends the whole answer at one moment."""
    streams = range(1, 8000, 2)
    async with connected(target.ext_proc_port) as (reader, writer), asyncio.timeout(15):
        taken = asyncio.create_task(answered(reader, 12, 1 << 26))
        writer.write(HELLO)
        for each in streams:
            writer.write(opened(each) + data(each, PLAIN))
            await writer.drain()
        await asyncio.sleep(1)
        writer.write(b"".join(data(each, PLAIN) for each in streams))
        writer.write(b"".join(frames.rst_stream(each, 8) for each in streams))
        await writer.drain()
        await asyncio.sleep(1)
        writer.write_eof()
        heard = await taken
    picked = heard.count(b"envoy.lb")
    return [] if picked > 2000 else [f"the attempt was none: {picked} requests were picked for"]


ATTEMPTS = (
    # Of grpcio: "It has no turns in reading", and each of these takes a millisecond and a half.
    Attempt(scores_of_a_large_pool, flags=("--emit-endpoint-scores=true",), transports=("h2",)),
    Attempt(refusals_at_one_moment, transports=("h2",)),
    Attempt(picks_without_a_pause_on_one_connection, transports=("h2",)),
)
