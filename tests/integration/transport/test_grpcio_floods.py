"""grpcio under a flood of streams: it must not cancel those of others, as it does by default while a thousand wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc.aio
import pytest

from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import rst_stream
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio
STREAMS = 4000


async def flood(port: int) -> None:
    """Streams with a message, each reset at once."""
    client = await RawClient.connect(port)
    for stream in range(1, 2 * STREAMS, 2):
        client.open(stream)
        client.message(stream, b"x")
        client.send(rst_stream(stream, ErrorCode.CANCEL))
    with suppress(ConnectionError):  # the h2 transport hangs up
        await client.writer.drain()
    await client.close()


async def test_streams_of_others_are_answered_in_a_flood_of_resets(open_transport):
    async with open_transport() as serving:
        channel = serving.channel()

        async def ask(number: int) -> bytes:
            call = serving.stream(channel)
            await call.write(b"%d" % number)
            answer = await call.read()
            await call.done_writing()
            return answer

        assert await ask(0) == b"0"
        floods = [asyncio.create_task(flood(serving.port)) for _ in range(2)]
        answers = []
        for number in range(200):
            try:
                answers.append(await ask(number))
            except grpc.aio.AioRpcError as refusal:
                answers.append(refusal.details())
        await asyncio.gather(*floods)
        assert answers == [b"%d" % number for number in range(200)]
