"""Watches of health by the ten thousand, and what has all of them told at one moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.connections import source_of
from benchmarks.attempts.connections_frames import block
from benchmarks.attempts.connections_grpc import asking, message
from benchmarks.attempts.gateway import HELLO, answered, connected
from benchmarks.attempts.second import asked, command_of, refused, second

_NAMES = (b"", b"liveness", b"envoy.service.ext_proc.v3.ExternalProcessor", b"of no service")


def _watching(first: int, count: int, name: bytes) -> bytes:
    asked_for = message(b"\x0a" + bytes([len(name)]) + name if name else b"")
    head = block(**{":path": b"/grpc.health.v1.Health/Watch"})
    return b"".join(asking(at, head, asked_for) for at in range(first, first + 2 * count, 2))


async def watches_that_hear_of_the_end(target: Target) -> Iterable[str]:
    """30,000 watches of health on both ports of a second picker (4000 on grpcio), which is told to end while they stay, read or not."""
    each = 400 if "--transport=grpcio" in command_of(target) else 3000
    async with second(target, "--drain-timeout=2s") as made, AsyncExitStack() as stack:
        heard = []
        for at in range(10):
            port = made.picker.health_port if at % 5 == 4 else made.picker.ext_proc_port
            reader, writer = await stack.enter_async_context(connected(port, source=source_of(target)))
            writer.write(HELLO)
            for first in range(1, 2 * each, 400):
                writer.write(_watching(first, 200, target.rng.choice(_NAMES)))
                await asyncio.sleep(0.02)
            heard.append(asyncio.create_task(answered(reader, 30.0, 1 << 24)) if at % 3 else None)
        before = await asked(made.picker.ext_proc_port, seconds=20)
        made.signal(signal.SIGTERM)
        made.told += refused([before, await asked(made.picker.ext_proc_port, seconds=10)], "beside watches that hear of the end")
        await made.ended(40)
        answers = [await each for each in heard if each is not None]
        if sum(answer.count(b"\x00\x00\x00\x00\x02\x08\x02") for answer in answers) < each:
            made.told.append("the watches were not told of the end")
    return made.told


ATTEMPTS = (Attempt(watches_that_hear_of_the_end),)
