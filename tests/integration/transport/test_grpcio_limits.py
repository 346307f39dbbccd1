"""What grpcio does not limit by itself: what its connections hold, and how many of them stay."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest

from endpick.requests.memory import MemoryAccount
from endpick.transport.h2.frames import FRAME_HEAD, FrameType, Setting
from endpick.transport.h2.grpc import MESSAGE_HEAD
from endpick.transport.limits import Limits
from integration.serve.gateway import until
from integration.transport.conftest import Serving, opened
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio
MEBIBYTE = 2**20
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535


async def half_a_message(client: RawClient, stream: int, size: int) -> bool:
    """Send all of a message but its last byte, as fast as the windows allow; whether the server took it."""
    client.open(stream)
    initial, windows = WINDOW_BYTES, {0: WINDOW_BYTES, stream: WINDOW_BYTES}
    rest = memoryview(MESSAGE_HEAD.pack(0, size) + bytes(size - 1))
    while rest:
        piece = rest[: max(0, min(FRAME_BYTES, *windows.values()))]
        if piece:
            head = FRAME_HEAD.pack(len(piece) >> 8, len(piece) & 0xFF, FrameType.DATA, 0, stream)
            try:
                client.send(head + piece)
                await client.writer.drain()
            except ConnectionError:
                return False
            rest = rest[len(piece) :]
            windows = {each: window - len(piece) for each, window in windows.items()}
            continue
        frame = await client.read()
        if frame is None:
            return False
        if frame.kind == FrameType.WINDOW_UPDATE and frame.stream in windows:
            windows[frame.stream] += int.from_bytes(frame.payload, "big")
        elif frame.kind == FrameType.SETTINGS:
            told = dict(struct.iter_unpack(">HI", frame.payload)).get(Setting.INITIAL_WINDOW_SIZE, initial)
            windows[stream] += told - initial
            initial = told
    return True


async def ask(serving: Serving, channel: grpc.aio.Channel) -> bytes:
    call = serving.stream(channel, wait_for_ready=True, timeout=15)
    await call.write(b"hello")
    answer = await call.read()
    await call.done_writing()
    return answer


async def all_given_back(account: MemoryAccount) -> None:
    async def nothing_is_held() -> bool:
        return account.held_bytes == 0

    await until(nothing_is_held, "everything given back")


async def test_half_messages_count_and_the_connection_that_holds_most_ends():
    account = MemoryAccount()
    async with opened(
        "grpcio", limits=Limits(max_buffered_bytes=16 * MEBIBYTE, max_envelope_bytes=64 * MEBIBYTE), account=account
    ) as serving:
        gateway = serving.channel()
        assert await ask(serving, gateway) == b"hello"
        modest = await RawClient.connect(serving.port)
        assert await half_a_message(modest, 1, 2 * MEBIBYTE)

        async def is_accounted_for() -> bool:
            return account.held_bytes > 1.9 * MEBIBYTE

        await until(is_accounted_for, "what has come of the message is accounted for")
        greedy = await RawClient.connect(serving.port)
        if await half_a_message(greedy, 1, 40 * MEBIBYTE):
            await greedy.read_to_end()
        assert serving.server.counters.buffer_exhaustions == 1
        assert await ask(serving, gateway) == b"hello"
        modest.send(FRAME_HEAD.pack(0, 1, FrameType.DATA, 0, 1) + b"x")
        await modest.read_until(FrameType.DATA, 1)
        await modest.close()
        await greedy.close()
        await all_given_back(account)


async def test_streams_that_say_nothing_count_and_the_connection_that_has_most_ends():
    account = MemoryAccount()
    async with opened("grpcio", limits=Limits(max_buffered_bytes=16 * MEBIBYTE), account=account) as serving:
        gateway = serving.channel()
        assert await ask(serving, gateway) == b"hello"
        silent = await RawClient.connect(serving.port)
        for stream in range(1, 2001, 2):
            silent.open(stream)
        ended = asyncio.ensure_future(silent.read_to_end())
        await asyncio.wait([ended], timeout=15)
        assert ended.done()
        assert serving.server.counters.buffer_exhaustions == 1
        assert await ask(serving, gateway) == b"hello"
        await silent.close()
        await all_given_back(account)


async def test_messages_of_every_size_that_streams_take_count_for_nothing():
    account = MemoryAccount()
    async with opened("grpcio", limits=Limits(max_envelope_bytes=8 * MEBIBYTE), account=account) as serving:
        call = serving.call(("grpc.max_receive_message_length", -1))
        for size in (0, 1, 100, 20_000, 3 * MEBIBYTE) * 5:
            await call.write(bytes(size))
            assert len(await call.read()) == size

        async def reckoned() -> bool:
            return not any(guest.explained for guest in serving.server._guests._guests.values())

        await until(reckoned, "a look at what has come")
        await all_given_back(account)
        await call.done_writing()


async def test_replies_that_a_client_does_not_take_are_accounted_for_and_have_an_end():
    account = MemoryAccount()
    async with opened("grpcio", limits=Limits(max_buffered_bytes=2 * MEBIBYTE), account=account) as serving:
        client = await RawClient.connect(serving.port, settings={Setting.INITIAL_WINDOW_SIZE: 0})
        for stream in (1, 3, 5):
            client.open(stream)
            client.message(stream, b"reply:%d" % 900_000)
            await serving.log.until_received(stream // 2 + 1)
        refused = await client.read_until(FrameType.HEADERS, 5)
        assert refused.payload
        assert serving.server.counters.buffer_exhaustions == 1
        assert 1_800_000 <= account.held_bytes < 2 * MEBIBYTE
        await client.close()
        await all_given_back(account)


async def test_idle_connections_make_room_for_gateways():
    async with opened("grpcio", limits=Limits(max_connections=16, max_peer_share=1.0)) as serving:
        gateway = serving.channel()
        assert await ask(serving, gateway) == b"hello"
        idle = [await RawClient.connect(serving.port, greet=number % 2 == 0) for number in range(40)]
        assert await ask(serving, serving.channel()) == b"hello"
        assert await ask(serving, gateway) == b"hello"

        async def evicted() -> bool:
            return serving.server.counters.connections_evicted >= 2

        await until(evicted, "idle connections closed")
        for client in idle:
            client.writer.transport.abort()


async def test_one_address_has_no_more_than_its_share_of_a_port_of_grpcio():
    async with opened("grpcio", limits=Limits(max_connections=8, max_peer_share=0.5)) as serving:
        crowd = []
        for number in range(6):
            crowd.append(await RawClient.connect(serving.port, from_host="127.0.0.2"))
            crowd[-1].open(1)
            crowd[-1].message(1, b"x")
            if number < 4:
                await crowd[-1].read_until(FrameType.DATA, 1)
        ended = [asyncio.ensure_future(client.read_to_end()) for client in crowd]
        await asyncio.wait(ended[4:], timeout=15)
        assert [each.done() for each in ended] == [False] * 4 + [True] * 2
        assert serving.server.counters.connections_refused_peer == 2
        assert await ask(serving, serving.channel()) == b"hello"
        for each, client in zip(ended, crowd, strict=True):
            each.cancel()
            await client.close()
