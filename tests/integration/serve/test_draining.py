"""What SIGTERM does to a request that is under way, and what the outside sees meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal

import aiohttp
import grpc
import pytest

from endpick._proto import ext_proc_pb2 as pb
from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(RANDOM)
    endpoints = {"endpoints": [{"name": "a", "address": "127.0.0.1", "port": "1"}]}
    (tmp_path / "endpoints.yaml").write_text(json.dumps(endpoints))
    return tmp_path


async def healthz(picker) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}/healthz") as response:
        return response.status, await response.text()


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_a_request_under_way_is_finished_while_nobody_new_is_taken(folder, transport):
    async with serving(folder, "--transport", transport, "--drain-timeout=30s") as picker:
        assert await healthz(picker) == (200, "ok\n")
        call, _ = await picker.begin()
        assert (await call.read()).WhichOneof("response") == "request_body"
        picker.process.send_signal(signal.SIGTERM)
        await picker.logged("draining")

        assert await healthz(picker) == (503, "draining\n")
        headers = pb.HeaderMap(headers=[pb.HeaderValue(key=":status", raw_value=b"200")])
        await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers)))
        answer = await call.read()
        assert answer.WhichOneof("response") == "response_headers"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        async with asyncio.timeout(15):
            await picker.process.wait()

    assert [event["event"] for event in picker.events][-1] == "stopped"


@pytest.mark.asyncio
async def test_a_request_that_outlasts_the_grace_is_ended(folder):
    async with serving(folder, "--drain-timeout=100ms") as picker:
        call, _ = await picker.begin()
        assert (await call.read()).WhichOneof("response") == "request_body"
        picker.process.send_signal(signal.SIGTERM)

        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(call.read(), 15)
        await asyncio.wait_for(picker.process.wait(), 15)

    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert ended.value.details() == "the server is stopping"
