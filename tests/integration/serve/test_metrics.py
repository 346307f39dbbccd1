"""What `/metrics` of a serving endpick says about its plugins while traffic flows, before and after a reload."""

from __future__ import annotations

import asyncio
import signal

import pytest

from integration.serve.gateway import running_gateway, samples, until

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {name: small-cache, type: approx-prefix-cache-producer, parameters: {autoTune: false, lruCapacityPerServer: 10}}
- {name: large-cache, type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 20000}}
- {name: small-prefix, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: small-cache}}
- {name: large-prefix, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: large-cache}}
- {type: inflight-load-producer, parameters: {prefixMatchInfoProducerName: large-cache}}
- type: active-request-scorer
- {type: label-selector-filter, parameters: {matchExpressions: [{key: gone, operator: DoesNotExist}]}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: label-selector-filter}, {pluginRef: small-prefix}, {pluginRef: large-prefix}, {pluginRef: active-request-scorer}]
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
CALLED_BY_THREE_REQUESTS = {
    ("RequestParsing", "openai-parser"): 3,
    ("Screener", "endpoint-health"): 3,
    ("DataProducer", "small-cache"): 3,
    ("DataProducer", "large-cache"): 3,
    ("DataProducer", "inflight-load-producer"): 3,
    ("ProfilePicker", "single-profile-handler"): 3,
    ("Filter", "label-selector-filter"): 3,
    ("Scorer", "small-prefix"): 3,
    ("Scorer", "large-prefix"): 3,
    ("Scorer", "active-request-scorer"): 3,
    ("Picker", "max-score-picker"): 3,
    ("ProcessProfilesResults", "single-profile-handler"): 3,
    ("PreRequest", "endpoint-health"): 3,
    ("PreRequest", "small-cache"): 3,
    ("PreRequest", "large-cache"): 3,
    ("PreRequest", "inflight-load-producer"): 3,
    ("ResponseReceived", "small-cache"): 3,
    ("ResponseReceived", "large-cache"): 3,
    ("ResponseParsing", "openai-parser"): 3,
    ("ResponseStreaming", "inflight-load-producer"): 3,
    ("ResponseComplete", "endpoint-health"): 3,
    ("ResponseComplete", "small-cache"): 3,
    ("ResponseComplete", "large-cache"): 3,
    ("ResponseComplete", "inflight-load-producer"): 3,
}
PROMPT = "You are a careful assistant. " * 300
SLOW_ANSWERS = ("--model", "m", "--prefill-ms-per-token", "0.01", "--decode-ms", "50")


async def by_instance(gateway, name: str) -> dict[str, float]:
    """The samples of that name by the instance they are of."""
    return {sample.labels["plugin_name"]: sample.value for sample in await samples(gateway.stack.metrics) if sample.name == name}


async def all_ended(gateway) -> bool:
    return await gateway.sample("llm_d_epp_request_running") == 0


async def called(gateway) -> dict[tuple[str, str], float]:
    """How often each instance was called at each extension point of a request, as far as it was."""
    return {
        (sample.labels["extension_point"], sample.labels["plugin_name"]): sample.value
        for sample in await samples(gateway.stack.metrics)
        if sample.name == "llm_d_epp_plugin_duration_seconds_count" and sample.value and sample.labels["extension_point"] != "Collection"
    }


@pytest.mark.asyncio
async def test_metrics_of_instances_do_not_clash_after_a_reload(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=2) as gateway:

        async def ask(times: int) -> None:
            for _ in range(times):
                async with await gateway.chat(PROMPT) as response:
                    assert response.status == 200

        await ask(3)
        await until(lambda: all_ended(gateway), "the end of every request")
        assert await called(gateway) == CALLED_BY_THREE_REQUESTS
        assert await by_instance(gateway, "llm_d_epp_prefix_indexer_size") == {"small-cache": 10, "large-cache": 34}
        assert await by_instance(gateway, "llm_d_epp_prefix_indexer_hit_ratio_count") == {"small-cache": 3, "large-cache": 3}
        assert await by_instance(gateway, "llm_d_epp_prefix_indexer_hit_bytes_sum") == {
            "small-cache": 2 * 10 * 256,
            "large-cache": 2 * 34 * 256,
        }

        (tmp_path / "config.yaml").write_text(CONFIG.replace("lruCapacityPerServer: 10}", "lruCapacityPerServer: 5}"))
        gateway.children.named("endpick").process.send_signal(signal.SIGHUP)

        async def applied() -> bool:
            return await gateway.sample("endpick_config_reloads_total", {"outcome": "applied"}) == 1

        await until(applied, "the reload")
        await ask(1)
        assert await by_instance(gateway, "llm_d_epp_prefix_indexer_size") == {"small-cache": 5, "large-cache": 34}
        assert await by_instance(gateway, "llm_d_epp_prefix_indexer_hit_ratio_count") == {"small-cache": 1, "large-cache": 4}
        assert await gateway.sample("endpick_plugin_faults_total") == 0


@pytest.mark.asyncio
async def test_requests_in_flight_are_shown_until_they_end(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=2, server_options=SLOW_ANSWERS) as gateway:
        streams = await asyncio.gather(*(gateway.chat(f"{n} {PROMPT}", max_tokens=20, stream=True) for n in range(4)))
        served = [stream.headers["x-served-by"] for stream in streams]
        shown = {
            sample.labels["endpoint_name"]: sample.value
            for sample in await samples(gateway.stack.metrics)
            if sample.name == "llm_d_epp_inflight_requests"
        }
        assert shown == {name: served.count(name) for name in set(served)}

        for stream in streams:
            await stream.read()
        await until(lambda: all_ended(gateway), "the end of every request")
        assert await gateway.sample("llm_d_epp_inflight_requests") == 0
