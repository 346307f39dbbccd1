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

from integration.plugins.serving import Picker, serving
from integration.serve.gateway import RANDOM

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
