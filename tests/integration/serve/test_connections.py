"""What the flags of `endpick serve` about connections do on the ext_proc port, whichever transport serves it."""

from __future__ import annotations

import asyncio
import struct

import pytest

from endpick.transport.h2 import frames
from endpick.transport.h2.frames import ErrorCode, FrameType, Setting
from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM
from integration.transport.raw_client import RawClient
from unit.extproc.conversation import request_headers

pytestmark = [pytest.mark.long, pytest.mark.asyncio, pytest.mark.parametrize("transport", ["h2", "grpcio"])]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    return tmp_path


async def test_aged_connection_finishes_its_streams(folder, transport):
    async with serving(folder, "--transport", transport, "--grpc-max-connection-age=100ms", "--grpc-max-connection-age-grace=1h") as picker:
        gateway = await RawClient.connect(picker.port)
        gateway.open(1)
        assert (await gateway.read_until(FrameType.GOAWAY)).code is ErrorCode.NO_ERROR
        gateway.message(1, request_headers(end=True), end=True)
        await gateway.read_until(FrameType.DATA, stream=1)
        await gateway.close()


async def test_stream_beyond_the_grace_ends_with_its_connection(folder, transport):
    async with serving(
        folder, "--transport", transport, "--grpc-max-connection-age=100ms", "--grpc-max-connection-age-grace=100ms"
    ) as picker:
        gateway = await RawClient.connect(picker.port)
        gateway.open(1)
        told = [frame for frame in await gateway.read_to_end() if frame.kind == FrameType.GOAWAY]
        assert told[0].code is ErrorCode.NO_ERROR
        await gateway.close()


async def test_silent_gateway_is_pinged_and_disconnected(folder, transport):
    async with serving(folder, "--transport", transport, "--grpc-keepalive-time=100ms", "--grpc-keepalive-timeout=100ms") as picker:
        gateway = await RawClient.connect(picker.port)
        assert [frame.flags for frame in await gateway.read_to_end() if frame.kind == FrameType.PING][:1] == [0]
        await gateway.close()


async def test_connection_limits_are_announced_and_enforced(folder, transport):
    async with serving(folder, "--transport", transport, "--grpc-max-connections=1", "--grpc-max-concurrent-streams=7") as picker:
        only = await RawClient.connect(picker.port)
        settings = dict(struct.iter_unpack(">HI", (await only.read_until(FrameType.SETTINGS)).payload))
        assert settings[Setting.MAX_CONCURRENT_STREAMS] == 7
        only.open(1)
        only.send(frames.ping(b"opened?!", ack=False))
        await only.read_until(FrameType.PING)
        another = await RawClient.connect(picker.port)
        assert await another.read_to_end() == []
        await another.close()
        await only.close()


async def test_two_processes_share_the_port_if_both_say_so(folder, transport):
    async with serving(folder, "--transport", transport, "--reuse-port") as first:
        port = first.port
        async with serving(folder, "--transport", transport, "--reuse-port", f"--grpc-port={port}") as second:
            assert second.port == port
            first.process.terminate()
            await asyncio.wait_for(first.process.wait(), 15)
            assert await second.ask() == ("127.0.0.1:1", 0)
