"""Bad input ends its own connection, with a counted reason."""

from __future__ import annotations

import random
import socket
import struct
import time
from pathlib import Path

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import FRAME_HEAD, ErrorCode, FrameType
from endpick.transport.h2.stream import MESSAGE_HEAD
from endpick.transport.limits import Limits
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio

ENVOY_RECORDING = Path(__file__).resolve().parents[2] / "fixtures/transport/envoy-1.40.bin"

GARBAGE = {
    "zeros": (b"\0" * 5000, ErrorCode.PROTOCOL_ERROR, "bad_prefaces"),
    "noise": (random.Random(7).randbytes(50_000), ErrorCode.PROTOCOL_ERROR, "bad_prefaces"),
    "HTTP/1": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", ErrorCode.HTTP_1_1_REQUIRED, "http1_connections"),
    "TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\x55" * 500, ErrorCode.PROTOCOL_ERROR, "tls_on_plain_text"),
    "half a preface": (b"PRI * HTTP/2.0\r\n\r\n" + b"x" * 20, ErrorCode.PROTOCOL_ERROR, "bad_prefaces"),
    "noise after the preface": (
        frames.PREFACE + frames.settings({}) + b"\xff" + random.Random(8).randbytes(5000),
        ErrorCode.FRAME_SIZE_ERROR,
        "connection_errors",
    ),
    "a header block of noise": (
        frames.PREFACE + frames.settings({}) + frames.headers(1, b"\x00\x7f\xff\xff\xff\xff\x0f", end_stream=False),
        ErrorCode.COMPRESSION_ERROR,
        "connection_errors",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_ends_its_own_connection_with_a_reason(open_h2, kind):
    garbage, code, counter = GARBAGE[kind]
    async with open_h2() as serving:
        neighbour = await RawClient.connect(serving.port)
        assert await neighbour.echo(1, b"before") == b"before"
        client = await RawClient.connect(serving.port, greet=False)
        client.send(garbage)
        *_, last = await client.read_to_end()
        assert (last.kind, last.code) == (FrameType.GOAWAY, code)
        assert getattr(serving.server.counters, counter) == 1
        assert await neighbour.echo(3, b"after") == b"after"
        await client.close()
        await neighbour.close()


async def test_silence_after_half_a_frame_times_out(open_h2):
    limits = Limits(handshake_seconds=0.2, keepalive_idle_seconds=0.2, keepalive_timeout_seconds=0.2)
    async with open_h2(limits=limits) as serving:
        started = await RawClient.connect(serving.port, greet=False)
        started.send(frames.PREFACE + b"\0\0")
        silent = await RawClient.connect(serving.port)
        silent.send(FRAME_HEAD.pack(0, 100, FrameType.DATA, 0, 1) + b"half")
        assert (await started.read_to_end())[-1].code is ErrorCode.SETTINGS_TIMEOUT
        assert (await silent.read_to_end())[-1].kind == FrameType.GOAWAY
        assert serving.server.counters.handshake_timeouts == 1
        assert serving.server.counters.keepalive_timeouts == 1
        await started.close()
        await silent.close()


async def test_vanished_clients_close_their_sessions(open_h2):
    async with open_h2() as serving:
        for turn in range(50):
            client = await RawClient.connect(serving.port)
            client.open(1)
            client.message(1, b"never")
            client.send(FRAME_HEAD.pack(0, 50, FrameType.DATA, 0, 1) + MESSAGE_HEAD.pack(0, 1000)[:3])
            await serving.log.until_received(turn + 1)
            # SO_LINGER 0: the kernel sends RST, as after a crash.
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
        assert await serving.log.until_closed(50) == [CloseCause.DISCONNECT] * 50
        counters = serving.server.counters
        assert counters.connections_opened == counters.connections_closed


async def test_connections_beyond_the_maximum_are_closed(open_h2):
    async with open_h2(limits=Limits(max_connections=2)) as serving:
        clients = [await RawClient.connect(serving.port) for _ in range(2)]
        for client in clients:
            assert await client.echo(1, b"in") == b"in"
        third = await RawClient.connect(serving.port)
        assert await third.read() is None
        assert serving.server.counters.connections_refused == 1
        await clients[0].close()
        assert len(await serving.log.until_closed(1)) == 1
        fourth = await RawClient.connect(serving.port)
        assert await fourth.echo(1, b"room again") == b"room again"
        for client in (clients[1], third, fourth):
            await client.close()


async def test_rapid_resets_close_their_connection(open_h2):
    async with open_h2() as serving:
        neighbour = await RawClient.connect(serving.port)
        attacker = await RawClient.connect(serving.port)
        for stream in range(1, 60_001, 2):
            attacker.open(stream)
            attacker.send(frames.rst_stream(stream, ErrorCode.CANCEL))
        assert (await attacker.read_to_end())[-1].code is ErrorCode.ENHANCE_YOUR_CALM
        assert serving.server.counters.reset_floods == 1
        assert await neighbour.echo(1, b"fine") == b"fine"
        await attacker.close()
        await neighbour.close()


async def test_client_that_reads_nothing_is_closed(open_h2):
    async with open_h2() as serving:
        client = await RawClient.connect(serving.port, settings={4: 2**31 - 1})
        client.send(frames.window_update(0, 2**31 - 1 - 65_535))
        client.open(1)
        for _ in range(20):
            client.message(1, b"reply:1000000")
        await serving.log.until_received(20)
        [connection] = serving.server._connections
        neighbour = await RawClient.connect(serving.port)
        assert await neighbour.echo(1, b"before") == b"before"
        connection.tick(time.monotonic() + 31)
        assert await serving.log.until_closed(1) == [CloseCause.DISCONNECT]
        assert serving.server.counters.slow_readers == 1
        assert await neighbour.echo(3, b"after") == b"after"
        await client.close()
        await neighbour.close()


async def test_random_frames_end_their_own_connection_at_most(open_h2):
    rng = random.Random(2026)
    async with open_h2() as serving:
        neighbour = await RawClient.connect(serving.port)
        for turn in range(60):
            client = await RawClient.connect(serving.port)
            client.open(1)
            for _ in range(rng.randint(1, 30)):
                payload = rng.randbytes(rng.choice((0, 4, 5, 6, 8, rng.randint(0, 300))))
                stream = rng.choice((0, 1, 1, 3, rng.randint(0, 2**31 - 1)))
                client.send(
                    FRAME_HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, rng.randint(0, 11), rng.randint(0, 255), stream) + payload
                )
            client.writer.write_eof()
            await client.read_to_end()
            await client.close()
            assert await neighbour.echo(2 * turn + 1, b"fine") == b"fine"
        await neighbour.close()
        assert serving.server.counters.session_faults == 0


async def test_recorded_gateway_is_served(open_h2):
    recording = ENVOY_RECORDING.read_bytes()
    async with open_h2() as serving:
        client = await RawClient.connect(serving.port, greet=False)
        client.send(recording)
        client.writer.write_eof()
        assert FrameType.GOAWAY not in [frame.kind for frame in await client.read_to_end()]
        assert len(await serving.log.until_closed(3)) == 3
        assert serving.server.counters.connection_errors == 0
        await client.close()
