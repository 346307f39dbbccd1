"""A third-party package decides about real requests, by being installed and named: `endpick serve` from a venv that pip filled."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from aiohttp import web

from endpick._proto import ext_proc_pb2 as pb

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: file-discovery
    parameters: {path: endpoints.yaml}
  - type: acme.cool-scorer
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


@asynccontextmanager
async def model_server(temperatures: dict[str, float], name: str) -> AsyncIterator[int]:
    """Something with a metrics page that tells a temperature; yields its port."""

    async def metrics(request: web.Request) -> web.Response:
        page = f'acme_gpu_temperature_celsius{{gpu="0"}} 30\nacme_gpu_temperature_celsius{{gpu="1"}} {temperatures[name]}\n'
        return web.Response(text=page)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(python, folder) -> AsyncIterator[int]:
    """`endpick serve` in the venv; yields its ext_proc port."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-m", "endpick", "serve", "config.yaml", *OPTIONS),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    lines: list[str] = []
    try:
        async with asyncio.timeout(40):
            port = None
            while port is None:
                line = (await process.stderr.readline()).decode()
                assert line, "".join(lines)
                lines.append(line)
                record = json.loads(line) if line.startswith("{") else {}
                port = record.get("ext_proc_port")
        drained = asyncio.create_task(process.stderr.read())
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
    await drained
    assert process.returncode == 0


async def destination(channel: grpc.aio.Channel) -> str:
    """Where endpick sends one chat request."""
    call = channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
    names = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json"}
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)))
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    answer = await call.read()
    call.cancel()
    set_headers = answer.request_headers.response.header_mutation.set_headers
    chosen = {one.header.key: one.header.raw_value.decode() for one in set_headers}
    return chosen["x-gateway-destination-endpoint"]


async def until_all_go_to(channel: grpc.aio.Channel, address: str) -> None:
    """Ask until ten requests in a row have gone to one address: the first ones come before its temperature is known."""
    async with asyncio.timeout(20):
        while (seen := Counter([await destination(channel) for _ in range(10)])) != {address: 10}:
            assert seen
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_requests_go_to_the_cool_endpoint_and_follow_it(plugin_venv, tmp_path):
    temperatures = {"a": 85.0, "b": 45.0}
    async with model_server(temperatures, "a") as port_a, model_server(temperatures, "b") as port_b:
        endpoints = [{"name": name, "address": "127.0.0.1", "port": str(port)} for name, port in (("a", port_a), ("b", port_b))]
        (tmp_path / "endpoints.yaml").write_text(json.dumps({"endpoints": endpoints}))
        (tmp_path / "config.yaml").write_text(CONFIG)

        async with serving(plugin_venv, tmp_path) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await until_all_go_to(channel, f"127.0.0.1:{port_b}")
            temperatures["b"] = 89.0
            await until_all_go_to(channel, f"127.0.0.1:{port_a}")
