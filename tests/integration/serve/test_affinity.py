"""Requests that belong together stay together, through Envoy: sessions, prompts, and numbers that a configuration names."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter

import pytest

from integration.serve.gateway import running_gateway, until

pytestmark = pytest.mark.long

HEAD = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
"""
BY_HEADER = f"{HEAD}- type: session-affinity-filter\n- type: random-picker\n"
BY_ID = f"""{HEAD}
- type: session-affinity-scorer
  parameters: {{strategy: session_id, sessionIdConfig: {{sources: [{{header: x-user}}, {{header: x-session-id}}], evictionTtlSeconds: 60}}}}
- type: max-score-picker
"""
STICKY_UNTIL_SATURATED = f"{HEAD}- type: prefix-cache-affinity-filter\n- type: token-load-scorer\n- type: max-score-picker\n"
BY_NUMBER = f"""{HEAD}
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: vllm
      queuedRequestsSpec: vllm:num_requests_waiting
      runningRequestsSpec: vllm:num_requests_running
      kvUsageSpec: vllm:kv_cache_usage_perc
      customMetrics: [{{attributeKey: Served_Requests, metricSpec: vllm:request_success_total}}]
- type: endpoint-attribute-filter
  parameters:
    attribute: Served_Requests
    producer: core-metrics-extractor
    algorithm: {{type: threshold, threshold: {{operator: LessThan, value: 1}}}}
- type: endpoint-attribute-scorer
  parameters: {{attributeKey: Served_Requests, algorithm: {{type: linear_lower_is_better}}}}
- type: max-score-picker
"""
REQUESTS = 12


async def ask(gateway, text="hello", **headers):
    """Status and headers of a response that was read to its end."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    names = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    async with gateway.client.post("/v1/chat/completions", json=body, headers=names) as response:
        await response.read()
        return response.status, response.headers


async def served_by(gateway, requests, **headers) -> Counter[str]:
    """How many of so many requests each server got."""
    before = await gateway.served()
    for _ in range(requests):
        status, _ = await ask(gateway, **headers)
        assert status == 200
    return await gateway.served() - before


@pytest.mark.asyncio
async def test_a_client_that_returns_its_token_stays_at_its_endpoint(tmp_path):
    async with running_gateway(tmp_path, BY_HEADER) as gateway:
        _, headers = await ask(gateway)
        token = headers["x-session-token"]
        first = b64decode(token).decode().rpartition("/")[2]

        assert await served_by(gateway, REQUESTS, session_token=token) == Counter({first: REQUESTS})
        assert (await ask(gateway, session_token=token))[1]["x-session-token"] == token
        assert (await ask(gateway, session_token="not base64"))[0] == 200


@pytest.mark.asyncio
async def test_a_client_with_an_id_stays_where_its_first_request_went(tmp_path):
    async with running_gateway(tmp_path, BY_ID) as gateway:
        assert sorted((await served_by(gateway, REQUESTS, user="ann")).values()) == [REQUESTS]
        assert sorted((await served_by(gateway, REQUESTS, session_id="s-1")).values()) == [REQUESTS]
        assert await gateway.sample("endpick_session_bindings") == 2
        assert await gateway.sample("endpick_session_bindings_displaced_total") == 0


@pytest.mark.asyncio
async def test_llm_ds_default_sends_a_prompt_where_it_is_cached(tmp_path):
    async with running_gateway(tmp_path, STICKY_UNTIL_SATURATED) as gateway:
        before = await gateway.served()
        for number in range(3):
            for _ in range(4):
                assert (await ask(gateway, f"prompt {number} " * 300))[0] == 200
        counts = await gateway.served() - before

    assert sum(counts.values()) == 12
    assert all(count % 4 == 0 for count in counts.values()), "each prompt stays with the endpoint that got it first"


@pytest.mark.asyncio
async def test_a_metric_under_a_name_of_the_operators_own_decides(tmp_path):
    async with running_gateway(tmp_path, BY_NUMBER, servers=2) as gateway:

        async def is_open() -> bool:
            return (await ask(gateway))[0] == 200

        async def is_closed() -> bool:
            return (await ask(gateway))[0] == 429

        await until(is_open, "endpoints that have not reported the number are kept")
        await until(is_closed, "every endpoint has served a request, and the filter keeps none")
        assert set((await gateway.served()).values()) & {0} == set()
