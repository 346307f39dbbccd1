"""What SIGTERM does to gateways that are connected, and what the outside sees meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from endpick._proto import ext_proc_pb2 as pb
from endpick.transport.h2.frames import FrameType
from integration.plugins.serving import OPTIONS, SOURCES, Picker, serving
from integration.serve.gateway import RANDOM, until
from integration.transport.raw_client import RawClient

both_transports = pytest.mark.parametrize("transport", ["h2", "grpcio"])
pytestmark = [pytest.mark.long, pytest.mark.asyncio]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(RANDOM)
    endpoints = {"endpoints": [{"name": "a", "address": "127.0.0.1", "port": "1"}]}
    (tmp_path / "endpoints.yaml").write_text(json.dumps(endpoints))
    return tmp_path


async def healthz(picker: Picker) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}/healthz") as response:
        return response.status, await response.text()


async def phase(picker: Picker) -> str:
    (current,) = (labels for labels, value in (await picker.samples("endpick_phase")).items() if value)
    return dict(current)["phase"]


def terminate(picker: Picker) -> None:
    picker.process.send_signal(signal.SIGTERM)


async def ended(picker: Picker) -> list[str]:
    """Wait for the end; the events that tell of it."""
    await asyncio.wait_for(picker.process.wait(), 15)
    await picker.logged("stopped")
    return [str(event.get("reason", event["event"])) for event in picker.events if event["event"] in ("finishing", "stopped")]


async def finish(call: grpc.aio.StreamStreamCall) -> None:
    """The model server answers a request that was begun."""
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=":status", raw_value=b"200")])
    await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers)))
    assert (await call.read()).WhichOneof("response") == "response_headers"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@both_transports
async def test_new_streams_are_served_in_the_drain_time_only(folder, transport):
    async with serving(folder, "--transport", transport, "--drain-timeout=1h") as picker:
        assert await healthz(picker) == (200, "ok\n")
        assert await picker.ask() == ("127.0.0.1:1", 0)
        terminate(picker)
        await picker.logged("draining: new requests are still served")

        assert await healthz(picker) == (503, "draining\n")
        assert await phase(picker) == "draining"
        call, _ = await picker.begin()
        assert (await call.read()).WhichOneof("response") == "request_body"
        another = await RawClient.connect(picker.port)
        await another.read_until(FrameType.SETTINGS)

        async def counted() -> bool:
            return (await picker.samples("endpick_streams_while_draining_total"))[()] == 1

        await until(counted, "the stream that began while draining")
        terminate(picker)
        await picker.logged("finishing")
        assert await healthz(picker) == (503, "finishing\n")
        assert await phase(picker) == "finishing"
        with pytest.raises(OSError, match=r"Connect|refused"):
            await asyncio.open_connection("127.0.0.1", picker.port)
        await finish(call)
        await another.close()
        assert await ended(picker) == ["a second signal came", "stopped"]


async def test_the_drain_time_is_over_when_the_last_gateway_has_gone(folder):
    async with serving(folder, "--drain-timeout=1h") as picker:
        gateway = await RawClient.connect(picker.port)
        await gateway.read_until(FrameType.SETTINGS)
        terminate(picker)
        await picker.logged("draining")
        await gateway.close()
        assert await ended(picker) == ["no gateway is connected", "stopped"]


async def test_a_client_of_the_health_port_keeps_the_drain_time_going(folder):
    async with serving(folder, "--drain-timeout=1h") as picker:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            terminate(picker)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            gateway = await RawClient.connect(picker.port)
            assert (await gateway.read_until(FrameType.SETTINGS)).flags == 0
            await gateway.close()
            watch.cancel()
            del watch
        assert await ended(picker) == ["no gateway is connected", "stopped"]


@both_transports
async def test_a_request_that_outlasts_both_times_is_ended(folder, transport):
    async with serving(folder, "--transport", transport, "--drain-timeout=100ms", "--finish-timeout=100ms") as picker:
        call, _ = await picker.begin()
        assert (await call.read()).WhichOneof("response") == "request_body"
        terminate(picker)

        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await asyncio.wait_for(call.read(), 15)
        assert await ended(picker) == ["the drain time is over", "stopped"]

    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    if transport == "h2":
        assert failure.value.details() == "the server is stopping"


async def test_a_third_signal_ends_the_process_though_streams_are_open(folder):
    async with serving(folder, "--drain-timeout=1h", "--finish-timeout=1h", exit_code=5) as picker:
        call, _ = await picker.begin()
        assert (await call.read()).WhichOneof("response") == "request_body"
        for event in ("draining", "finishing"):
            terminate(picker)
            await picker.logged(event)
        terminate(picker)
        await asyncio.wait_for(picker.process.wait(), 15)


UNREADY = {"silent.discovery": "silent:Discovery"}
SILENT = """\
import asyncio
from endpick.api.discovery import EndpointDiscovery


class Discovery(EndpointDiscovery):
    \"\"\"Never reports.\"\"\"

    async def run(self, sink):
        self.context.logger.warning("discovering")
        try:
            await asyncio.Event().wait()
        finally:
            self.context.logger.warning("discovery has ended")
"""


async def test_a_signal_during_the_start_gives_the_start_up(folder, make_distribution):
    """The discovery would be waited for for an hour."""
    project = make_distribution("silent", UNREADY, modules={"silent": SILENT})
    (folder / "config.yaml").write_text(
        "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: silent.discovery}, {type: random-picker}]\n"
        "dataLayer: {discovery: {endpoints: {pluginRef: silent.discovery}}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS, "--discovery-timeout=1h"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [project, *SOURCES]))},
        stderr=asyncio.subprocess.PIPE,
    )
    events = []
    async with asyncio.timeout(40):
        while line := (await process.stderr.readline()).decode():
            events.append(json.loads(line)["event"])
            if events[-1] == "discovering":
                process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert events[-3:] == ["discovery has ended", "stopped before it served", "stopped"]
