"""More connections than the h2 transport takes: who stays, who goes, and that a gateway is still served."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest

from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FrameType
from endpick.transport.limits import Limits
from endpick.transport.tls import TlsSettings
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio


async def test_the_longest_idle_connection_goes_when_another_needs_its_room(open_h2):
    async with open_h2(limits=Limits(max_connections=3, max_peer_share=1.0)) as serving:
        busy = await RawClient.connect(serving.port)
        assert await busy.echo(1, b"in") == b"in"
        idle = [await RawClient.connect(serving.port) for _ in range(2)]
        for client in idle:
            await client.read_until(FrameType.SETTINGS)
        another = await RawClient.connect(serving.port)
        assert await another.echo(1, b"room") == b"room"

        (goaway,) = [frame for frame in await idle[0].read_to_end() if frame.kind == FrameType.GOAWAY]
        assert goaway.code is ErrorCode.NO_ERROR
        assert await idle[1].echo(1, b"still here") == b"still here"
        busy.message(1, b"me too")
        assert (await busy.read_until(FrameType.DATA, 1)).payload.endswith(b"me too")
        assert serving.server.counters.connections_evicted == 1
        assert serving.server.counters.connections_refused == 0
        for client in (busy, another, *idle):
            await client.close()


async def test_a_connection_that_never_had_a_stream_goes_before_one_that_had(open_h2):
    async with open_h2(limits=Limits(max_connections=2, max_peer_share=1.0)) as serving:
        gateway = await RawClient.connect(serving.port)
        gateway.open(1)
        gateway.message(1, b"finish")
        await gateway.read_until(FrameType.RST_STREAM, 1)
        idle = [await RawClient.connect(serving.port) for _ in range(21)]
        await idle[-1].read_until(FrameType.SETTINGS)
        assert await gateway.echo(3, b"still here") == b"still here"
        assert serving.server.counters.connections_evicted == 20
        for client in (gateway, *idle):
            await client.close()


async def test_one_address_has_no_more_than_its_share(open_h2):
    async with open_h2(limits=Limits(max_connections=4, max_peer_share=0.5)) as serving:
        greedy = [await RawClient.connect(serving.port) for _ in range(2)]
        for client in greedy:
            assert await client.echo(1, b"in") == b"in"
        third = await RawClient.connect(serving.port)
        assert await third.read() is None
        neighbour = await RawClient.connect(serving.port, from_host="127.0.0.2")
        assert await neighbour.echo(1, b"in, too") == b"in, too"
        assert serving.server.counters.connections_refused_peer == 1
        for client in (*greedy, third, neighbour):
            await client.close()


async def test_connections_whose_streams_say_nothing_make_room_though_their_client_says_it_is_there(open_h2):
    async with open_h2(limits=Limits(max_connections=4, max_peer_share=1.0)) as serving:
        gateway = await RawClient.connect(serving.port)
        assert await gateway.echo(1, b"in") == b"in"
        gateway.send(frames.rst_stream(1, ErrorCode.CANCEL))
        silent = [await RawClient.connect(serving.port, from_host="127.0.0.2") for _ in range(3)]
        for client in silent:
            client.open(1)
            client.send(frames.ping(b"is there", ack=False))
            await client.read_until(FrameType.PING)
        for connection in serving.server._connections:
            connection.tick(time.monotonic() + 6)
        another = await RawClient.connect(serving.port, from_host="127.0.0.2")
        assert await another.echo(1, b"room") == b"room"
        assert await gateway.echo(3, b"still here") == b"still here"
        assert serving.server.counters.connections_evicted == 1
        for client in (gateway, another, *silent):
            await client.close()


async def test_clients_that_never_finish_their_tls_handshake_make_room(open_h2):
    async with open_h2(tls=TlsSettings(), limits=Limits(max_connections=4, max_peer_share=1.0)) as serving:
        silent = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(50)]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        gateway = await RawClient.connect(serving.port, tls=context)
        assert await gateway.echo(1, b"in") == b"in"
        assert serving.server.counters.connections_evicted == 47
        for _, writer in silent:
            writer.close()
        await gateway.close()


async def test_a_tls_handshake_that_takes_too_long_is_given_up_and_counted(open_h2):
    async with open_h2(tls=TlsSettings(), limits=Limits(handshake_seconds=0.1)) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(15):
            assert await reader.read() == b""
        assert serving.server.counters.tls_handshake_failures == 1
        assert serving.server.connections == 0
        writer.close()
