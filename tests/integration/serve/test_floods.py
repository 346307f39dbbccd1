"""Clients that take connections and file descriptors and give nothing for them: gateways, probes and scrapes are still served."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FrameType
from endpick.transport.h2.hpack import encode
from integration.plugins.serving import Picker, serving
from integration.serve.gateway import RANDOM, until
from integration.transport.raw_client import HEADERS, RawClient

pytestmark = pytest.mark.asyncio
OPEN_FILES = 160


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    return tmp_path


@pytest.fixture
def few_files(tmp_path) -> Path:
    """A Python that may have few files open."""
    script = tmp_path / "few-files"
    script.write_text(f'#!/bin/sh\nulimit -n {OPEN_FILES}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


async def healthz(picker: Picker) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}/healthz") as response:
        return response.status


async def check(picker: Picker) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="readiness"))).status


async def event(picker: Picker, family: str, name: str) -> float:
    return (await picker.samples(f"endpick_{family}_events_total"))[(("event", name),)]


async def test_a_gateway_is_served_beside_two_thousand_idle_connections(folder):
    async with serving(folder) as picker:
        idle = [await RawClient.connect(picker.port, greet=False) for _ in range(2000)]
        assert await picker.ask() == ("127.0.0.1:1", 0)
        assert await event(picker, "transport", "connections_evicted") == 2000 + 1 - 512
        (told,) = await picker.logged("idle connections closed")
        assert told["advice"] == "raise --grpc-max-connections if gateways are among them"
        for client in idle:
            client.writer.transport.abort()


async def test_probes_are_answered_while_no_descriptor_is_left_and_requests_once_there_are(folder, few_files):
    async with serving(folder, python=few_files) as picker:
        (warned,) = await picker.logged("room for fewer connections than allowed")
        assert warned["advice"] == f"raise the limit of open files (ulimit -n), which is {OPEN_FILES}"
        hogs = []
        async with asyncio.timeout(20):
            while not any("no file descriptor is left" in str(event["event"]) for event in picker.events):
                hogs.append(await RawClient.connect(picker.port))
                hogs[-1].open(1)

        (told,) = await picker.logged("no file descriptor is left")
        assert told["port"] == picker.port
        assert await healthz(picker) == 200
        assert await check(picker) == health_pb2.HealthCheckResponse.SERVING
        assert await event(picker, "transport", "accept_pauses") >= 1
        for hog in hogs:
            hog.writer.transport.abort()
        assert await picker.ask() == ("127.0.0.1:1", 0)


async def test_healthz_answers_beside_five_hundred_requests_that_never_end(folder):
    async with serving(folder) as picker:
        half = [await asyncio.open_connection("127.0.0.1", picker.metrics_port) for _ in range(500)]
        for _, writer in half:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: ")
        assert await healthz(picker) == 200
        closed = [await event(picker, "admin", why) for why in ("connections_evicted", "connections_refused_peer")]
        assert sum(closed) >= 500 - 32, "by which of the two depends on how fast they came"
        for _, writer in half:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("said", "told", "option", "counter"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: ", b"", "--metrics-header-timeout=100ms", "header_timeouts"),
        (b"", b"", "--metrics-idle-timeout=100ms", "idle_connections"),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 1000, b"HTTP/1.1 413 ", "--metrics-max-request=4Ki", "requests_too_large"),
    ],
)
async def test_a_client_that_does_not_come_to_the_point_is_hung_up_on(folder, said, told, option, counter):
    async with serving(folder, option) as picker:
        reader, writer = await asyncio.open_connection("127.0.0.1", picker.metrics_port)
        writer.write(said)
        async with asyncio.timeout(15):
            with suppress(ConnectionResetError):
                assert (await reader.read())[:13] == told
        writer.close()
        assert await event(picker, "admin", counter) == 1


async def test_idle_clients_of_the_health_port_make_room_for_probes(folder):
    async with serving(folder, "--grpc-health-max-connections=4") as picker:
        idle = [await RawClient.connect(picker.health_port) for _ in range(20)]
        assert await check(picker) == health_pb2.HealthCheckResponse.SERVING

        async def evicted() -> bool:
            return await event(picker, "health", "connections_evicted") == 17

        await until(evicted, "seventeen evictions")
        await idle[-1].read_until(FrameType.SETTINGS)
        for client in idle:
            await client.close()


async def test_probes_and_gateways_are_answered_on_grpcio_beside_more_silent_connections_than_descriptors(folder, few_files):
    async with serving(folder, "--transport=grpcio", python=few_files) as picker:
        assert await picker.ask() == ("127.0.0.1:1", 0)
        silent = [await RawClient.connect(picker.port, greet=number % 2 == 0) for number in range(2 * OPEN_FILES)]
        assert await healthz(picker) == 200
        assert await check(picker) == health_pb2.HealthCheckResponse.SERVING
        assert await picker.ask() == ("127.0.0.1:1", 0)

        async def evicted() -> bool:
            return await event(picker, "transport", "connections_evicted") > 0

        await until(evicted, "evictions")
        (told,) = await picker.logged("idle connections closed")
        assert told["advice"] == "raise --grpc-max-connections if gateways are among them"
        for client in silent:
            client.writer.transport.abort()


async def test_what_clients_do_to_the_library_of_grpcio_writes_no_line_of_its_own(folder):
    async with serving(folder, "--transport=grpcio") as picker:
        client = await RawClient.connect(picker.port)
        said = b"bye\n" + b'{"event":"forged"}'
        client.send(frames.FRAME_HEAD.pack(0, 8 + len(said), FrameType.GOAWAY, 0, 0) + bytes(7) + b"\1" + said)
        await client.close()
        garbage = await RawClient.connect(picker.port, greet=False)
        garbage.send(b"GET / HTTP/1.1\r\n\r\n")
        await garbage.read_to_end()
        await garbage.close()
        assert await picker.ask() == ("127.0.0.1:1", 0)
    assert all("logger" in event for event in picker.events)


WATCH = tuple((name, b"/grpc.health.v1.Health/Watch" if name == b":path" else value) for name, value in HEADERS)
READINESS = health_pb2.HealthCheckRequest(service="readiness").SerializeToString()


async def test_watches_that_have_all_seats_of_the_health_port_make_room_for_probes(folder):
    async with serving(folder, "--grpc-health-max-connections=8") as picker:
        watches = [await RawClient.connect(picker.health_port) for _ in range(8)]
        for client in watches:
            client.send(frames.headers(1, encode(WATCH), end_stream=False))
            client.message(1, READINESS)
            await client.read_until(FrameType.DATA, 1)
        assert await check(picker) == health_pb2.HealthCheckResponse.SERVING
        assert await event(picker, "health", "connections_refused") == 0
        (goaway,) = [frame for frame in await watches[0].read_to_end() if frame.kind == FrameType.GOAWAY]
        assert goaway.code is ErrorCode.NO_ERROR, "the oldest went"
        for client in watches:
            client.writer.transport.abort()


async def test_clients_that_are_hung_up_on_and_stay_make_room_for_probes(folder):
    async with serving(folder, "--grpc-health-max-connections=8") as picker:
        wrong = [await RawClient.connect(picker.health_port, greet=False) for _ in range(8)]
        for client in wrong:
            client.send(b"GET /healthz HTTP/1.1\r\n\r\n")
            await client.read_until(FrameType.GOAWAY)
        assert await check(picker) == health_pb2.HealthCheckResponse.SERVING
        assert await event(picker, "health", "connections_refused") == 0
        for client in wrong:
            client.writer.transport.abort()
