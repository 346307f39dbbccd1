"""One trace from the gateway through the picker to the model server, in a real OpenTelemetry collector.

It runs where `ENDPICK_OTELCOL` is the path of a collector with the OTLP receiver and the debug exporter.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from endpick_gateway.envoy_config import EnvoySettings
from endpick_lab.demo import stack
from integration.serve.gateway import running_gateway

OTELCOL = os.environ.get("ENDPICK_OTELCOL", "")
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.long,
    pytest.mark.skipif(not os.access(OTELCOL, os.X_OK), reason="set ENDPICK_OTELCOL to an OpenTelemetry collector with its debug exporter"),
]
CONFIG = """\
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:PORT"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
"""
SPAN = re.compile(r"Trace ID +: (\w+)\n +Parent ID +: (\w*)\n +ID +: (\w+)\n +Name +: (.+)")


@asynccontextmanager
async def collector(folder: Path, port: int) -> AsyncIterator[Path]:
    """A collector; its log shows what arrives."""
    (folder / "otelcol.yaml").write_text(CONFIG.replace("PORT", str(port)))
    log = folder / "otelcol.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(OTELCOL, "--config", f"file:{folder}/otelcol.yaml", stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        await process.wait()


def traced_bootstrap(port: int, plain=stack.bootstrap):
    """Envoy that begins traces, and sends its spans to the collector."""

    def bootstrap(settings: EnvoySettings) -> dict:
        config = plain(settings)
        resources = config["static_resources"]
        (filters,) = resources["listeners"][0]["filter_chains"]
        filters["filters"][0]["typed_config"]["tracing"] = {
            "random_sampling": {"value": 100.0},
            "spawn_upstream_span": True,
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}},
                    "service_name": "envoy",
                },
            },
        }
        picker = next(each for each in resources["clusters"] if each["name"] == "endpick")
        address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        assignment = {"cluster_name": "collector", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
        resources["clusters"].append({**picker, "name": "collector", "load_assignment": assignment})
        return config

    return bootstrap


async def test_one_trace_reaches_from_gateway_to_model_server(tmp_path, monkeypatch):
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    monkeypatch.setattr(stack, "bootstrap", traced_bootstrap(port))
    async with collector(tmp_path, port) as log, running_gateway(tmp_path, servers=2) as gateway:
        async with await gateway.chat("hello") as response:
            assert response.status == 200
        wanted = {"request", "run_scheduler_profile", "scoring", "pick_endpoints", "llm_request"}
        async with asyncio.timeout(20):
            while True:
                spans = SPAN.findall(log.read_text())
                (trace,) = {trace for trace, _, _, name in spans if name == "request"} or {""}
                ours = [span for span in spans if span[0] == trace]
                if wanted <= {name for *_, name in ours} and len(ours) > len(wanted) + 3:
                    break
                await asyncio.sleep(0.1)
    by_id = {identity: name for _, _, identity, name in ours}
    parents = {name: by_id.get(parent, "") for _, parent, _, name in ours}
    assert parents["request"] == "async envoy.service.ext_proc.v3.ExternalProcessor.Process egress"
    assert parents["run_scheduler_profile"] == "request"
    assert parents["llm_request"] == "router model-servers egress", "Envoy continues the trace itself"
    assert parents["ingress"] == ""
