"""A connection that sends more than the others has no more than its turn."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from endpick.api.turns import MANY_CONNECTIONS
from endpick.requests.memory import DROP_BYTES
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FRAME_HEAD, FrameType, Setting
from endpick.transport.h2.grpc import MESSAGE_HEAD
from endpick.transport.limits import Limits
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio


async def test_a_fast_connection_leaves_the_others_their_turns(open_h2):
    async with open_h2(limits=Limits(read_bytes_per_turn=8192)) as serving:
        fast, slow = [await RawClient.connect(serving.port) for _ in range(2)]
        for client in (fast, slow):
            assert await client.echo(1, b"hello") == b"hello"
        serving.log.received.clear()
        message = b"reply:" + b"0" * 94
        head = FRAME_HEAD.pack(0, len(message) + MESSAGE_HEAD.size, FrameType.DATA, 0, 1)
        frame = head + MESSAGE_HEAD.pack(0, len(message)) + message
        # Past the event loop, which client and server share: what is written is there before the server's next turn.
        sent = os.write(fast.writer.get_extra_info("socket").fileno(), frame * 8000)
        fast.send((frame * 8000)[sent:])
        slow.message(1, b"slow")
        assert (await slow.read_until(FrameType.DATA, 1)).payload.endswith(b"slow")

        per_turn = serving.server.limits.read_bytes_per_turn // len(frame)
        assert serving.log.received.index(b"slow") <= 2 * (per_turn + 1)
        received = await serving.log.until_received(8001)
        assert received.count(message) == 8000
        assert serving.server.counters.reads_deferred > 0
        await fast.close()
        await slow.close()


async def test_messages_that_take_long_make_a_turn_shorter(open_h2):
    async with open_h2(limits=Limits(read_seconds_per_turn=0.0)) as serving:
        fast, slow = [await RawClient.connect(serving.port) for _ in range(2)]
        for client in (fast, slow):
            assert await client.echo(1, b"hello") == b"hello"
        serving.log.received.clear()
        message = b"reply:1" + b" " * 93
        frame = FRAME_HEAD.pack(0, len(message) + MESSAGE_HEAD.size, FrameType.DATA, 0, 1) + MESSAGE_HEAD.pack(0, len(message)) + message
        assert os.write(fast.writer.get_extra_info("socket").fileno(), frame * 550) == len(frame) * 550, "less than a turn may have at most"
        slow.message(1, b"slow")
        assert (await slow.read_until(FrameType.DATA, 1)).payload.endswith(b"slow")

        assert serving.log.received.index(b"slow") <= 8, "two turns of four frames"
        received = await serving.log.until_received(551)
        assert received.count(message) == 550
        assert serving.server.counters.reads_deferred == 1, "one read, which took many turns"
        await fast.close()
        await slow.close()


async def test_many_connections_that_send_much_take_turns_with_each_other_not_with_the_rest(open_h2):
    """The queue of turns is served for no time at all here, so that one connection has its turn between two looks at the others."""
    async with open_h2(limits=Limits(read_seconds_per_turn=0.0)) as serving:
        greedy = [await RawClient.connect(serving.port) for _ in range(20)]
        slow = await RawClient.connect(serving.port)
        for client in (*greedy, slow):
            assert await client.echo(1, b"hello") == b"hello"
        serving.log.received.clear()
        message = b"reply:1" + b" " * 93
        frame = FRAME_HEAD.pack(0, len(message) + MESSAGE_HEAD.size, FrameType.DATA, 0, 1) + MESSAGE_HEAD.pack(0, len(message)) + message
        for client in greedy:
            os.write(client.writer.get_extra_info("socket").fileno(), frame * 100)
        await serving.log.until_received(200)  # all of them stand in the queue
        before = len(serving.log.received)
        slow.message(1, b"slow")
        assert (await slow.read_until(FrameType.DATA, 1)).payload.endswith(b"slow")

        assert serving.log.received.index(b"slow") - before <= 10 * 4, "some turns of four frames, and not twenty for each look"
        received = await serving.log.until_received(20 * 100 + 1)
        assert received.count(message) == 20 * 100
        for client in (*greedy, slow):
            await client.close()


async def test_a_connection_that_ends_with_many_streams_takes_turns_with_the_rest(open_h2):
    """The queue of turns is served for no time at all, so that some streams end between two looks at the others."""
    async with open_h2(limits=Limits(read_seconds_per_turn=0.0)) as serving:
        crowded, other = [await RawClient.connect(serving.port) for _ in range(2)]
        for stream in range(1, 2001, 2):
            crowded.open(stream)
        assert await crowded.echo(2001, b"hello") == b"hello"
        assert await other.echo(1, b"hello") == b"hello"
        at_once = []
        loop = asyncio.get_running_loop()

        def look(before: int) -> None:
            closed = serving.server.counters.streams_closed
            at_once.append(closed - before)
            if serving.server.connections > 1:
                loop.call_soon(look, closed)

        look(0)
        crowded.writer.transport.abort()
        await serving.log.until_closed(1001)
        assert max(at_once) <= 64
        assert serving.server.counters.streams_active == 1
        await other.close()


async def test_what_many_connections_send_at_one_moment_is_not_all_read_at_once(open_h2):
    async with open_h2() as serving:
        serving.server.turns.at_once_seconds = 0.0
        clients = [await RawClient.connect(serving.port) for _ in range(2 * MANY_CONNECTIONS)]
        for client in clients:
            assert await client.echo(1, b"hello") == b"hello"
        before = serving.server.counters.reads_deferred
        for client in clients:
            client.message(1, b"at once")
        for client in clients:
            assert (await client.read_until(FrameType.DATA, 1)).payload.endswith(b"at once")
        assert serving.server.counters.reads_deferred > before
        for client in clients:
            await client.close()


async def test_what_was_written_and_is_not_taken_is_accounted_for_until_it_is(open_h2):
    """Fifty clients whose windows are open and who read nothing: 480 MiB were resident where 300 were allowed."""
    async with open_h2() as serving:
        memory = serving.server.memory
        client = await RawClient.connect(serving.port, settings={Setting.INITIAL_WINDOW_SIZE: 2**30})
        client.send(frames.window_update(0, 2**30))
        client.open(1)
        client.message(1, b"reply:%d" % 20_000_000)
        await serving.log.until_received(1)
        while not memory.held_bytes or memory.account.held_bytes - memory.held_bytes < 256 * 1024:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)
        await client.close()
        await serving.server._empty.wait()
        assert memory.account.held_bytes == 0


async def test_what_waits_for_its_turn_is_accounted_for_until_it_was_acted_upon(open_h2):
    """A thousand connections may have a quarter of a megabyte each: 349 MiB were resident where 300 were allowed."""
    async with open_h2(limits=Limits(read_seconds_per_turn=0.0)) as serving:
        account = serving.server.memory.account
        clients = [await RawClient.connect(serving.port) for _ in range(4)]
        for client in clients:
            assert await client.echo(1, b"hello") == b"hello"
        before = account.held_bytes
        flood = (FRAME_HEAD.pack(0, 4, FrameType.WINDOW_UPDATE, 0, 0) + b"\x00\x00\x00\x01") * 5000
        for client in clients:
            assert os.write(client.writer.get_extra_info("socket").fileno(), flood) == len(flood)
        most = before
        while sum(connection._turn_scheduled for connection in serving.server._connections) or most == before:
            most = max(most, account.held_bytes)
            await asyncio.sleep(0)
        assert most - before >= 3 * len(flood)
        assert account.held_bytes == before
        clients[0].send(FRAME_HEAD.pack(0xFF, 0, 0x77, 0, 0) + bytes(60_000))
        while account.held_bytes == before:
            for connection in serving.server._connections:
                connection.tick(time.monotonic())
            await asyncio.sleep(0)
        assert before + 50_000 < account.held_bytes <= before + 60_009
        for client in clients:
            await client.close()
        await serving.server._empty.wait()
        assert account.held_bytes == 0


async def test_connections_that_end_at_one_moment_do_not_all_end_in_one_turn(open_h2):
    """Each leaves a plugin work to do, and together they leave memory to give back: five hundred took 91 ms at once."""
    async with open_h2(limits=Limits(read_seconds_per_turn=0.0)) as serving:
        serving.server.turns.at_once_seconds = 0.0
        clients = [await RawClient.connect(serving.port) for _ in range(3 * MANY_CONNECTIONS)]
        for client in clients:
            assert await client.echo(1, b"hello") == b"hello"
        for client in clients:
            client.writer.transport.abort()
        closed = set()
        while serving.server.connections:
            closed.add(serving.server.counters.connections_closed)
            await asyncio.sleep(0)
        assert serving.server.counters.connections_closed == len(clients)
        assert len(closed) > MANY_CONNECTIONS


async def test_what_others_have_read_waits_behind_a_turn_in_which_memory_is_given_back(open_h2):
    async with open_h2() as serving:
        account = serving.server.memory.account
        clients = [await RawClient.connect(serving.port) for _ in range(6)]
        for client in clients:
            assert await client.echo(1, b"hello") == b"hello"
            client.open(3)
        account.held_bytes += 20 * DROP_BYTES
        account.settle()
        loop = asyncio.get_running_loop()
        turns, given_back_in = 0, []

        def count() -> None:
            nonlocal turns
            turns += 1
            if len(given_back_in) < 6:
                loop.call_soon(count)

        def give_back() -> None:
            given_back_in.append(turns)
            account.held_bytes -= 2 * DROP_BYTES

        account.on_drop.append(give_back)
        account.held_bytes -= 2 * DROP_BYTES
        count()
        for client in clients:  # past the event loop, so that all of it is there in one turn
            os.write(client.writer.get_extra_info("socket").fileno(), frames.rst_stream(3, ErrorCode.CANCEL))
        await serving.log.until_closed(6)
        account.on_drop.clear()
        assert len(given_back_in) == 6
        assert len(set(given_back_in)) >= 5, "each in a turn of the event loop of its own"
        account.held_bytes -= 6 * DROP_BYTES
        for client in clients:
            await client.close()
