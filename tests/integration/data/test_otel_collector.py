"""A real OpenTelemetry collector between model servers and `otlp-source`: over gRPC and over HTTP, with and without TLS.

It runs where `ENDPICK_OTELCOL` is the path of a collector that has the OTLP receiver and both OTLP exporters.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from google.protobuf.json_format import MessageToJson

from unit.builtin.pages import make_certificate
from unit.builtin.test_otlp import export, serving

OTELCOL = os.environ.get("ENDPICK_OTELCOL", "")
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not os.access(OTELCOL, os.X_OK), reason="set ENDPICK_OTELCOL to an OpenTelemetry collector with its OTLP exporters"),
]
CONFIG = """\
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:RECEIVED"}}}}
exporters:
  EXPORTER: {endpoint: "ENDPOINT", compression: COMPRESSION, tls: {TLS}, retry_on_failure: {initial_interval: 100ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {receivers: [otlp], exporters: [EXPORTER]}}
"""


@asynccontextmanager
async def collector(folder, exporter: str, endpoint: str, compression: str, tls: str):
    """The URL at which a collector takes metrics over HTTP, to pass them on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    words = {"RECEIVED": str(port), "EXPORTER": exporter, "ENDPOINT": endpoint, "COMPRESSION": compression, "TLS": tls}
    config = CONFIG
    for word, value in words.items():
        config = config.replace(word, value)
    (folder / "otelcol.yaml").write_text(config)
    log = folder / "otelcol.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(OTELCOL, "--config", f"file:{folder}/otelcol.yaml", stdout=output, stderr=output)
    try:
        yield f"http://127.0.0.1:{port}/v1/metrics", log.read_text
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def push(url: str, body: bytes) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
                return response.status == 200
        except aiohttp.ClientConnectorError:
            return False  # it has not started yet


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
async def test_data_pushed_to_a_collector_reach_their_endpoints(tmp_path, exporter, compression, secured):
    parameters, tls = {}, "insecure: true"
    if secured:
        cert, key = await asyncio.to_thread(partial(make_certificate, tmp_path, "server"))
        parameters, tls = {"certPath": str(cert), "keyPath": str(key)}, f"ca_file: {cert}"
    async with serving(**parameters) as (source, pages, _):
        scheme = "https" if secured else "http"
        endpoint = f"127.0.0.1:{source.grpc_port}" if exporter == "otlp_grpc" else f"{scheme}://127.0.0.1:{source.port}"
        async with collector(tmp_path, exporter, endpoint, compression, tls) as (url, log), asyncio.timeout(10):
            while not await push(url, MessageToJson(export()).encode()):  # noqa: ASYNC110 - until it listens
                await asyncio.sleep(0.05)
            while not pages:  # noqa: ASYNC110 - until it has passed them on
                await asyncio.sleep(0.05)
    assert pages[0].newest("vllm:num_requests_waiting") == ({"model_name": 'm"1'}, 3.0, None), log()


@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
async def test_a_collector_logs_which_points_were_left_out(tmp_path, exporter):
    async with serving() as (source, _, registry):
        endpoint = f"127.0.0.1:{source.grpc_port}" if exporter == "otlp_grpc" else f"http://127.0.0.1:{source.port}"
        async with collector(tmp_path, exporter, endpoint, "gzip", "insecure: true") as (url, log), asyncio.timeout(10):
            while not await push(url, MessageToJson(export("gone")).encode()):  # noqa: ASYNC110 - until it listens
                await asyncio.sleep(0.05)
            while "which is the name of 0 endpoints" not in log():  # noqa: ASYNC110 - until it has been told
                await asyncio.sleep(0.05)
    assert registry.get_sample_value("endpick_otlp_points_total", {"outcome": "dropped"}) >= 1
