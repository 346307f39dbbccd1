"""Both transports as a grpcio client sees them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import grpc
import grpc.aio
import pytest

from endpick.requests.model import CloseCause
from endpick.transport.limits import Limits
from endpick.transport.listener import ListenError, ListenSettings
from endpick.transport.server import open_server
from integration.transport.conftest import opened

pytestmark = pytest.mark.asyncio


async def test_half_close_ends_the_stream_with_ok(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        for message in (b"one", b"", b"three" * 1000):
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert await serving.log.until_closed(1) == [CloseCause.END]
        assert serving.log.received == [b"one", b"", b"three" * 1000]


async def test_streams_share_a_connection_without_mixing(open_transport):
    async with open_transport() as serving:
        channel = serving.channel()

        async def talk(name: int) -> list[bytes]:
            call = serving.stream(channel)
            answers = []
            for turn in range(5):
                await call.write(b"%d/%d" % (name, turn))
                answers.append(await call.read())
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
            return answers

        async with asyncio.timeout(60):
            assert await asyncio.gather(*map(talk, range(50))) == [[b"%d/%d" % (name, turn) for turn in range(5)] for name in range(50)]
        assert serving.server.counters.streams_opened == 50
        assert await serving.log.until_closed(50) == [CloseCause.END] * 50


async def test_large_messages_pass_both_ways(open_transport):
    size = 5_000_000
    async with open_transport() as serving:
        call = serving.call(("grpc.max_receive_message_length", -1))
        await call.write(b"x" * size)
        assert await call.read() == b"x" * size
        await call.write(b"reply:%d" % size)
        assert await call.read() == b"r" * size
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_replies_keep_their_order(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"split:200")
        assert [await call.read() for _ in range(200)] == [b"%d" % number for number in range(200)]


async def test_finished_session_ends_the_stream(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"finish")
        assert await call.read() == b"finish"
        assert await call.code() is grpc.StatusCode.OK
        assert await serving.log.until_closed(1) == [CloseCause.END]


async def test_protocol_error_becomes_the_status(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"refuse:9")
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert await call.details() == "not like this: 100% ü"
        assert await serving.log.until_closed(1) == [CloseCause.ERROR]
        assert (serving.server.counters.session_refusals, serving.server.counters.session_faults) == (1, 0)


async def test_failing_session_is_internal_and_stays_in_its_stream(open_transport, caplog):
    async with open_transport() as serving:
        channel = serving.channel()
        healthy, broken = serving.stream(channel), serving.stream(channel)
        await healthy.write(b"before")
        assert await healthy.read() == b"before"
        await broken.write(b"raise")
        assert await broken.code() is grpc.StatusCode.INTERNAL
        assert "a bug" not in await broken.details()
        await healthy.write(b"after")
        assert await healthy.read() == b"after"
        assert await serving.log.until_closed(1) == [CloseCause.ERROR]
    assert "ValueError: a bug" in caplog.text
    assert serving.server.counters.session_faults == 1


async def test_awaited_decision_is_answered(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"later:42")
        assert await call.read() == b"resumed:42"
        await call.write(b"now")
        assert await call.read() == b"now"
        await call.write(b"later:43")
        await call.done_writing()
        assert await call.read() == b"resumed:43"
        assert await call.code() is grpc.StatusCode.OK


async def test_messages_reach_a_waiting_session(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"never")
        await call.write(b"meanwhile")
        assert await serving.log.until_received(2) == [b"never", b"meanwhile"]
        call.cancel()
        assert await serving.log.until_closed(1) == [CloseCause.RESET]


async def test_failed_decision_goes_to_the_session(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"broken")
        assert await call.read() == b"failed:no tokenizer"
        assert await call.code() is grpc.StatusCode.OK


async def test_cancelled_stream_is_a_reset(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"x")
        await call.read()
        call.cancel()
        assert await serving.log.until_closed(1) == [CloseCause.RESET]
        assert serving.server.counters.session_faults == 0


async def test_vanished_client_closes_its_sessions(open_transport):
    async with open_transport() as serving:
        channel = serving.channel()
        call = serving.stream(channel)
        await call.write(b"x")
        await call.read()
        await channel.close()
        [cause] = await serving.log.until_closed(1)
        # grpcio cancels its streams before it closes the connection.
        assert cause in (CloseCause.RESET, CloseCause.DISCONNECT)


async def test_deadline_ends_the_stream(open_transport):
    async with open_transport() as serving:
        call = serving.call(timeout=0.3)
        await call.write(b"never")
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await serving.log.until_closed(1) == [CloseCause.RESET]


async def test_unknown_method_is_unimplemented(open_transport):
    async with open_transport() as serving:
        call = serving.channel().stream_stream("/no.Such/Method")()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert serving.server.counters.unknown_methods == 1
        assert serving.log.opened == 0


async def test_compressed_messages_are_refused(open_transport):
    async with open_transport() as serving:
        call = serving.call(compression=grpc.Compression.Gzip)
        with suppress(grpc.aio.AioRpcError):  # refused for its headers, before the message is sent
            await call.write(bytes(100_000))
        # The client may see the stream reset before it has read why.
        assert await call.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
        assert serving.log.received == []


async def test_too_large_message_is_resource_exhausted(open_transport):
    async with open_transport(limits=Limits(max_message_bytes=1000)) as serving:
        channel = serving.channel()
        call = serving.stream(channel)
        await call.write(b"x" * 1001)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        other = serving.stream(channel)
        await other.write(b"x" * 1000)
        assert await other.read() == b"x" * 1000


async def test_drain_waits_for_streams_and_refuses_new_ones(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"x")
        await call.read()
        drain = asyncio.create_task(serving.server.drain(20))
        late = serving.call()
        assert await late.code() is grpc.StatusCode.UNAVAILABLE
        await call.write(b"still served")
        assert await call.read() == b"still served"
        assert not drain.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        async with asyncio.timeout(10):
            await drain
        assert serving.log.causes == [CloseCause.END]


async def test_drain_ends_streams_beyond_its_grace(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"x")
        await call.read()
        async with asyncio.timeout(10):
            await serving.server.drain(0.2)
        assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert serving.log.causes == [CloseCause.DRAIN]


async def test_stop_ends_everything_and_is_idempotent(open_transport):
    async with open_transport() as serving:
        call = serving.call()
        await call.write(b"never")
        await serving.log.until_received(1)
        await serving.server.stop()
        await serving.server.stop()
        assert len(await serving.log.until_closed(1)) == 1
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", serving.port)


async def test_port_in_use_is_named(transport):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            await open_server(transport, ListenSettings(host="127.0.0.1", port=port), {}).start()


@pytest.mark.parametrize("target", ["127.0.0.1", "[::1]"])
async def test_empty_host_listens_on_both_families(open_transport, target):
    if target == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with open_transport(host="") as serving, grpc.aio.insecure_channel(f"{target}:{serving.port}") as channel:
        call = serving.stream(channel)
        await call.write(b"hi")
        assert await call.read() == b"hi"


async def test_servers_may_share_a_port(transport):
    async with opened(transport, reuse_port=True) as first:
        second = open_server(transport, ListenSettings(host="127.0.0.1", port=first.port, reuse_port=True), {})
        assert await second.start() == first.port
        await second.stop()
