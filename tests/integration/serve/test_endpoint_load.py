"""Load in the headers of answers, through Envoy: asked for, read, kept from clients, and in place of polls."""

from __future__ import annotations

import json

import pytest

from integration.serve.gateway import running_gateway, until

pytestmark = pytest.mark.long

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: endpoint-load-observer}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
ASKS = "endpoint-load-metrics-format"
TOLD = "endpoint-load-metrics"


async def ask(gateway, *, stream: bool = False, **headers) -> str | None:
    """The load report that the client sees."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": stream}
    async with gateway.client.post("/v1/chat/completions", json=body, headers=headers) as response:
        await response.read()
        assert response.status == 200
        return response.headers.get(TOLD)


@pytest.mark.asyncio
async def test_answers_tell_the_load_and_take_the_place_of_polls(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=1, options=("--idle-metrics-interval=1s",)) as gateway:
        assert await ask(gateway) is None, "the client did not ask"
        report = await ask(gateway, **{ASKS: "JSON"})
        assert report is not None
        assert set(json.loads(report.removeprefix("JSON "))["named_metrics"]) == {"num_requests_waiting", "kv_cache_usage_perc"}
        assert (await ask(gateway, **{ASKS: "TEXT"}) or "").startswith("TEXT named_metrics.num_requests_waiting=0")
        assert await ask(gateway, stream=True) is None
        assert await gateway.sample("endpick_endpoint_loads_total", {"outcome": "read"}) == 3
        assert await gateway.sample("endpick_endpoint_loads_total", {"outcome": "none"}) == 1

        async def spared() -> bool:
            await ask(gateway)
            return await gateway.sample("endpick_polls_total", {"event": "reported"}) >= 20

        await until(spared, "20 polls left out because answers told the load")
        assert await gateway.sample("endpick_data_age_seconds", {"key": "waiting-queue-size"}) < 1.5
        assert await gateway.sample("llm_d_epp_datalayer_poll_errors_total") == 0
