"""What `/metrics` of a serving endpick shows after traffic, beside the catalogue of llm-d's families."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import yaml_files
from endpick.serve.legacy import OLD_NAMES
from integration.serve.gateway import Gateway, running_gateway, until

pytestmark = pytest.mark.long

PREFIX = "llm_d_epp_"
CATALOGUE = {row["name"]: row for row in yaml_files.load(Path(__file__).parents[2] / "fixtures/metrics/catalogue.yaml")}
OF_PLUGINS = {"plugin_name", "plugin_type"}
"""endpick adds these to whatever a plugin counts."""
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: prefix-cache-scorer
- type: active-request-scorer
- type: queue-scorer
- type: core-metrics-extractor
  parameters:
    defaultEngine: incomplete
    engineConfigs:
    - name: incomplete
      queuedRequestsSpec: vllm:num_requests_waiting
      runningRequestsSpec: vllm:num_requests_running
      kvUsageSpec: vllm:kv_cache_usage_perc
      customMetrics: [{attributeKey: lost, metricSpec: no_such_metric}]
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: active-request-scorer}, {pluginRef: queue-scorer}]
"""


NO_SERVER = "\n- {name: nothing-there, address: 127.0.0.1, port: '1'}\n"


@dataclass
class Shown:
    """One family of the page."""

    type: str
    labels: set[frozenset[str]]
    bounds: set[float]
    samples: int


async def page(gateway: Gateway) -> str:
    async with aiohttp.ClientSession() as client, client.get(gateway.stack.metrics) as response:
        assert response.status == 200
        return await response.text()


def families(text: str, prefix: str) -> dict[str, Shown]:
    """Every family of the page whose name begins so, under the name that its samples bear."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(prefix):
            name = family.name.removeprefix(prefix) + ("_total" if family.type == "counter" else "")
            labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
            bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels} - {float("inf")}
            found[name] = Shown(family.type, labels, bounds, len(family.samples))
    return found


async def make_traffic(gateway: Gateway) -> None:
    """A request in one piece, a stream, one for another model, one that is refused, one without a body."""
    text = "You are a careful assistant. " * 100
    for extra in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        async with await gateway.chat(text, max_tokens=8, **extra) as response:
            assert response.status == 200
            await response.read()
    body = {"model": "other", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    async with gateway.client.post("/v1/chat/completions", json=body, headers={"x-llm-d-model-name-rewrite": "m"}) as response:
        assert response.status == 200
    async with gateway.client.post("/v1/chat/completions", json={"no": "messages"}) as response:
        assert response.status == 400
    async with gateway.client.get("/v1/models") as response:
        assert response.status == 200

    async def over() -> bool:
        ended = await gateway.sample(f"{PREFIX}request_duration_seconds_count")
        return ended == 4 and await gateway.sample(f"{PREFIX}request_running") == 0

    await until(over, "the end of every request")


@pytest.mark.asyncio
async def test_page_shows_the_metric_families_of_llm_d(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=2, options=("--legacy-metrics",)) as gateway:
        await make_traffic(gateway)
        with gateway.endpoints_file.open("a") as file:
            file.write(NO_SERVER)

        async def not_reached() -> bool:
            return await gateway.sample(f"{PREFIX}datalayer_poll_errors_total") > 0

        await until(not_reached, "a poll of the endpoint without a server")

        async def in_pieces() -> bool:
            """On a busy machine all that a stream says may come at once, so that there is no time between two pieces."""
            async with await gateway.chat("Again.", max_tokens=8, stream=True) as response:
                await response.read()
            return await gateway.sample(f"{PREFIX}request_streaming_itl_seconds_count") > 0

        await until(in_pieces, "a stream that came in more pieces than one")
        text = await page(gateway)
    shown = families(text, PREFIX)
    wrong = []
    for name, family in shown.items():
        row = CATALOGUE.get(name)
        if row is None:
            wrong.append(f"{name} is no family of llm-d's")
            continue
        if family.type != row["type"]:
            wrong.append(f"{name} is a {family.type}, not a {row['type']}")
        if any(labels - OF_PLUGINS != set(row["labels"]) - OF_PLUGINS for labels in family.labels):
            wrong.append(f"{name} has the labels {family.labels}, not {row['labels']}")
        if "buckets" in row and family.samples and family.bounds != set(map(float, row["buckets"])):
            wrong.append(f"{name} has the buckets {sorted(family.bounds)}")
    missing = [name for name, row in CATALOGUE.items() if row["when"] == "traffic" and (name not in shown or not shown[name].samples)]
    assert (wrong, missing) == ([], [])
    assert "_created" not in text
    assert 'endpick_config_reloads_total{outcome="applied"} 0.0' in text

    old = families(text, "")
    assert {name.old for name in OLD_NAMES if name.new in shown} == {name.old for name in OLD_NAMES if name.old in old}
    assert {name.old for name in OLD_NAMES if name.new in shown and shown[name.new].samples and not old[name.old].samples} == set()


@pytest.mark.asyncio
async def test_old_names_are_shown_on_request_only(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=2) as gateway:
        await make_traffic(gateway)
        text = await page(gateway)

        async def value(name: str, **labels: str) -> float:
            return await gateway.sample(PREFIX + name, labels)

        assert not any(name.startswith(("inference_", "llm_d_inference_scheduler_")) for name in families(text, ""))
        assert await value("request_error_total", fairness_id="default-flow", model_name="", error_code="BadRequest") == 1
        assert await value("request_duration_seconds_count", model_name="", fairness_id="default-flow") == 1
        assert await value("request_ttft_seconds_count", streaming="true") == 1
        assert await value("request_ttft_seconds_count", streaming="false") == 2
        assert await value("request_streaming_tpot_seconds_count") == 1
        assert await value("model_rewrite_decisions_total", model_name="other", target_model="m") == 1
        assert await value("scheduler_attempts_total", status="success", namespace="default") == 3
        named = {
            sample.labels["model_server_endpoint"]
            for sample in await everything(gateway)
            if sample.name.endswith("per_endpoint_queue_size")
        }
        attempted = {sample.labels["endpoint_name"] for sample in await everything(gateway) if sample.name.endswith("attempts_total")}
        assert attempted <= named
        assert not any("/" in name for name in named)


async def everything(gateway: Gateway):
    return [sample for family in text_string_to_metric_families(await page(gateway)) for sample in family.samples]
