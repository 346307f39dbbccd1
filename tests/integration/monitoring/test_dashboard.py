"""Every query of the Grafana dashboard returns data from a real Prometheus that scrapes a loaded picker."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from forked import SOURCES
from integration.serve.gateway import Gateway, running_gateway

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "endpick.json").read_text())
QUERIES = {(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())}
NEVER_HERE = {"Decisions without an endpoint", "Uncaught errors"}
ZERO = " or on() vector(0)"
CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- {type: prefix-cache-scorer}
- {type: random-picker}
- {type: faulty.raises}
- {type: faulty.slow}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: random-picker}, {pluginRef: faulty.raises}, {pluginRef: faulty.slow}]
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}, defaultPriorityBand: {maxRequests: 100}}
"""
PROMETHEUS = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: endpick, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@asynccontextmanager
async def prometheus(gateway: Gateway) -> AsyncIterator[str]:
    """The URL of a Prometheus that scrapes the picker; skips the test without one."""
    binary = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
    if not binary:
        pytest.skip("no prometheus: set PROMETHEUS to its binary, or put it on the PATH")
    target = gateway.stack.metrics.removeprefix("http://").removesuffix("/metrics")
    config = gateway.folder / "prometheus.yml"
    config.write_text(PROMETHEUS.format(rules=DEPLOY / "prometheus" / "rules.yaml", target=target))
    storage = f"--storage.tsdb.path={gateway.folder / 'tsdb'}"
    options = ("--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage")
    child = await gateway.children.start("prometheus", (binary, f"--config.file={config}", storage, *options))

    async def ready() -> str | None:
        listening = re.search(r'msg="Listening on" address=(\S+)', child.output())
        return f"http://{listening[1]}" if listening and "ready to receive web requests" in child.output() else None

    yield await child.wait_until_ready(ready, 20)


async def make_traffic(gateway: Gateway, number: int) -> None:
    """Streams, some of them to the endpoint without a server, and requests that are refused."""
    for turn in range(10_000):
        async with await gateway.chat(
            "You are careful. " * 50 + str(turn), max_tokens=8, stream=True, stream_options={"include_usage": True}
        ) as response:
            await response.read()
        if number == 0:
            async with gateway.client.post("/v1/chat/completions", json={"no": "messages"}) as response:
                assert response.status == 400


async def has_data(client: aiohttp.ClientSession, url: str, expression: str) -> bool:
    """True if the query returns a number."""
    query = expression.replace("$__rate_interval", "10s").replace("$job", ".+")
    async with client.get(f"{url}/api/v1/query", params={"query": query}) as response:
        answer = await response.json()
    assert answer["status"] == "success", f"{query}: {answer}"
    return any(not math.isnan(float(result["value"][1])) for result in answer["data"]["result"])


async def empty_queries(url: str, queries: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The queries that return nothing."""
    async with aiohttp.ClientSession() as client:
        return {(title, expression) for title, expression in queries if not await has_data(client, url, expression)}


async def exemplar_labels(url: str, metric: str) -> set[str]:
    """The labels of all exemplars that Prometheus has stored."""
    interval = {"start": "0", "end": "9999999999"}
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{url}/api/v1/query_exemplars", params={"query": metric} | interval) as response,
    ):
        found = (await response.json())["data"]
    return {label for series in found for exemplar in series["exemplars"] for label in exemplar["labels"]}


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.asyncio
async def test_every_panel_has_data(tmp_path, monkeypatch, fixture_project):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [fixture_project("faulty-scorers"), *SOURCES])))
    strict = {(title, expression if title in NEVER_HERE else expression.replace(ZERO, "")) for title, expression in QUERIES}
    async with running_gateway(tmp_path, CONFIG, servers=2, options=("--stall-limit=500ms",)) as gateway, prometheus(gateway) as url:
        with gateway.endpoints_file.open("a") as file:
            file.write("- {name: dead, address: 127.0.0.1, port: '1'}\n")
        clients = [asyncio.create_task(make_traffic(gateway, number)) for number in range(6)]
        empty = strict
        try:
            async with asyncio.timeout(60):
                while empty := await empty_queries(url, empty):
                    assert not any(client.done() for client in clients), "a client has failed"
        except TimeoutError:
            pytest.fail(f"without data: {sorted(empty)}")
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        assert await exemplar_labels(url, "llm_d_epp_request_ttft_seconds_bucket") == {"request_id"}
        assert await empty_queries(url, {(title, expression) for title, expression in QUERIES if ZERO in expression}) == set()
