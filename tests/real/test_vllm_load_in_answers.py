"""What a real vLLM says of its load in its answers, through the real Envoy and `endpick serve`, which scrapes nothing."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from integration.serve.gateway import running_gateway, samples, until
from real.servers import MODEL, RUNNING_AT_ONCE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: static-discovery
  parameters:
    endpoints:
    - {{name: a, address: 127.0.0.1, port: {port}}}
- {{type: endpoint-load-observer, parameters: {{format: {form}, runningMetric: ""}}}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
dataLayer:
  injectDefaults: false
  discovery: {{endpoints: {{pluginRef: static-discovery}}}}
"""
LOADS = "endpick_endpoint_loads_total"


def completion(tokens: int, **more: object) -> dict:
    return {"model": MODEL, "prompt": "on and on", "max_tokens": tokens, "ignore_eos": True, **more}


async def ask(client: aiohttp.ClientSession, body: dict, **headers: str) -> tuple[str | None, bytes]:
    """The load report of the answer, as the client sees it, and the body."""
    async with client.post("/v1/completions", json=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content
        return response.headers.get("endpoint-load-metrics"), content


@pytest.mark.parametrize("form", ["JSON", "TEXT"])
async def test_load_report_is_shown_only_to_clients_that_ask(vllm, tmp_path, form):
    async with running_gateway(tmp_path, CONFIG.format(port=vllm[0].port, form=form), servers=0) as gateway:
        assert (await ask(gateway.client, completion(2)))[0] is None, "the client did not ask"

        async def was_read() -> bool:
            return await gateway.sample(LOADS, {"outcome": "read"}) == 1

        await until(was_read, "the load in the first answer")
        told, _ = await ask(gateway.client, completion(2), **{"endpoint-load-metrics-format": "json"})
        assert told is not None
        assert {"num_requests_waiting", "kv_cache_usage_perc"} <= json.loads(told.partition(" ")[2])["named_metrics"].keys()
        assert await gateway.sample(LOADS, {"outcome": "unreadable"}) == 0


async def test_a_streamed_answer_has_no_load_and_is_counted_so(vllm, tmp_path):
    async with running_gateway(tmp_path, CONFIG.format(port=vllm[0].port, form="JSON"), servers=0) as gateway:
        told, content = await ask(gateway.client, completion(4, stream=True), **{"endpoint-load-metrics-format": "json"})
        assert told is None
        assert content.count(b"data: ") == 5

        async def was_counted() -> bool:
            return await gateway.sample(LOADS, {"outcome": "none"}) == 1

        await until(was_counted, "the answer without a load")
        assert await gateway.sample(LOADS, {"outcome": "read"}) == 0


async def test_answer_reports_the_queue_behind_its_request(vllm, tmp_path):
    config, url = CONFIG.format(port=vllm[0].port, form="JSON"), f"{vllm[0].url}/v1/completions"
    async with running_gateway(tmp_path, config, servers=0) as gateway, aiohttp.ClientSession() as own:
        first = asyncio.create_task(ask(gateway.client, completion(400), **{"endpoint-load-metrics-format": "json"}))
        running = f"{vllm[0].url}/metrics"

        async def runs() -> bool:
            return sum(each.value for each in await samples(running) if each.name == "vllm:num_requests_running") >= 1

        await until(runs, "the first request at the server")
        crowd = [asyncio.create_task(own.post(url, json=completion(1000))) for _ in range(4 * RUNNING_AT_ONCE)]
        try:
            told, _ = await first
            waiting = json.loads(str(told).partition(" ")[2])["named_metrics"]["num_requests_waiting"]
            assert waiting > 0

            async def follows() -> bool:
                return await gateway.sample("llm_d_epp_average_queue_size") == waiting

            await until(follows, "the column")
        finally:
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
