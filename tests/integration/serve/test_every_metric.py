"""Every family of llm-d's catalogue is on the page of some serving endpick, with its type, labels and buckets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from integration.plugins.serving import Picker, serving
from integration.serve.conversation import Exchange, converse
from integration.serve.disaggregated import IMAGE
from integration.serve.gateway import until
from integration.serve.test_metrics_catalogue import CATALOGUE, OF_PLUGINS, PREFIX, Shown, families
from unit.builtin import pages
from unit.builtin.kv_publisher import Publisher, removed, stored

pytestmark = [pytest.mark.asyncio, pytest.mark.long]

QUEUES = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
objectives: [{name: low, priority: -1}]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: program-aware-fairness}
- {type: prefix-cache-scorer}
- {type: active-request-scorer}
- {type: curious}
- type: core-metrics-extractor
  parameters:
    defaultEngine: incomplete
    engineConfigs:
    - name: incomplete
      queuedRequestsSpec: vllm:num_requests_waiting
      runningRequestsSpec: vllm:num_requests_running
      kvUsageSpec: vllm:kv_cache_usage_perc
      customMetrics: [{attributeKey: lost, metricSpec: no_such_metric}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: active-request-scorer}, {pluginRef: curious}]}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
  enableEviction: true
  maxRequests: 100
  maxBytes: 1Mi
"""
CURIOUS = """\
import numpy as np

from endpick.api import WAITING_QUEUE_SIZE, Scorer


class Curious(Scorer):
    '''Looks at a column that it did not declare.'''

    def score(self, request, endpoints, state):
        return np.zeros(len(endpoints)) * np.nan_to_num(endpoints[WAITING_QUEUE_SIZE])
"""
STAGES = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
objectives: [{{name: low, priority: -1}}]
plugins:
- {{type: encode-filter}}
- {{type: prefill-filter}}
- {{type: decode-filter}}
- {{type: always-disagg-multimodal-decider}}
- {{type: always-disagg-pd-decider}}
- type: disagg-profile-handler
  parameters: {{deciders: {{encode: always-disagg-multimodal-decider, prefill: always-disagg-pd-decider}}}}
- {{type: token-producer}}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {{blockSizeTokens: 4}}
    kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {events}, replaySocketPort: {replay}}}}}
- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}
- {{type: mm-embeddings-cache-producer}}
- {{type: mm-embeddings-cache-scorer}}
- {{type: predicted-latency-producer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}
- {{type: utilization-detector}}
- {{type: max-saturation-detector, parameters: {{detectors: [utilization-detector]}}}}
- {{type: prefix-cache-affinity-filter, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {{labelSelector: app=m}}
    revisionGating: {{mode: sum, revisionLabelKey: revision, roleLabelKey: role, requiredRoles: [all]}}
schedulingProfiles:
- {{name: encode, plugins: [{{pluginRef: encode-filter}}]}}
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}]}}
- name: decode
  plugins:
  - {{pluginRef: decode-filter}}
  - {{pluginRef: prefix-cache-affinity-filter}}
  - {{pluginRef: prefix-cache-scorer}}
  - {{pluginRef: mm-embeddings-cache-scorer}}
flowControl: {{saturationDetector: {{pluginRef: max-saturation-detector}}}}
"""
FORMER = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}
- {type: always-disagg-pd-decider}
- {type: prefill-filter}
- {type: decode-filter}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
"""
LABELS = "labels: {app: m, revision: r1, role: all, llm-d.ai/role: encode-prefill-decode}"
NOBODY = "127.0.0.2"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "A question that has some length. " * 20}]}
LOOK = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, IMAGE]}]}
HURRIED = {"x-slo-ttft-ms": "0.001", "x-slo-tpot-ms": "0.001"}
PAGE = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"


class Pages(dict[str, Shown]):
    """The families of all pages that were looked at, those with samples first."""

    async def look_at(self, picker: Picker) -> None:
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}/metrics") as response:
            assert response.status == 200
            for name, shown in families(await response.text(), PREFIX).items():
                if shown.samples or name not in self:
                    self[name] = shown


def endpoints(port: int, *silent: str) -> str:
    """The server, and endpoints at addresses where none listens."""
    hosts = enumerate(("127.0.0.1", *silent))
    return "endpoints:\n" + "".join(f'- {{name: e{number}, address: {host}, port: "{port}", {LABELS}}}\n' for number, host in hosts)


async def server(request: web.BaseRequest) -> web.Response:
    """A model server's page, and a predictor that knows everything."""
    if request.path == "/metrics":
        return web.Response(body=PAGE)
    if request.path.startswith("/predict"):
        asked = (await request.json())["requests"]
        return web.json_response({"predictions": [{"ttft_ms": 100.0, "tpot_ms": 10.0} for _ in asked]})
    return web.Response(status=202)


async def counted(picker: Picker, name: str, least: float = 1.0) -> None:
    async def reached() -> bool:
        return sum((await picker.samples(PREFIX + name)).values()) >= least

    await until(reached, f"{name} counts {least}")


async def queues(folder: Path, shown: Pages, port: int, curious: Path) -> None:
    """Requests in queues, one of them taken back; a page that lacks a metric, and an endpoint without a server."""
    (folder / "config.yaml").write_text(QUEUES)
    (folder / "endpoints.yaml").write_text(endpoints(port))
    options = ("--endpoints", "endpoints.yaml", "--enable-grpc-stream-metrics")
    async with serving(folder, *options, path=[curious]) as picker:
        await counted(picker, "datalayer_extract_errors_total")
        for streamed in (False, True):
            await converse(picker, CHAT, streamed=streamed)
        await converse(picker, CHAT, {"x-llm-d-model-name-rewrite": "other"})
        await converse(picker, CHAT)
        low = await Exchange.begin(picker, CHAT, {"x-llm-d-inference-objective": "low"})
        assert (await low.decided())[0] == 0
        high = await Exchange.begin(picker, CHAT)
        assert await low.refused_later() == 429
        assert (await high.decided())[0] == 0
        await shown.look_at(picker)
        await high.answer()
        refused = await Exchange.begin(picker, {"no": "messages"})
        assert (await refused.decided())[0] == 400
        await counted(picker, "request_error_total")
        await counted(picker, "flow_control_revocation_confirmation_seconds_count")
        (folder / "endpoints.yaml").write_text(endpoints(port, NOBODY))
        picker.reload()
        await counted(picker, "datalayer_poll_errors_total")
        await shown.look_at(picker)


async def stages(folder: Path, shown: Pages, port: int, publisher: Publisher) -> None:
    """Encode, prefill and decode with KV events, predictions, pictures and a rollout."""
    (folder / "config.yaml").write_text(STAGES.format(events=publisher.port, replay=publisher.replay_port))
    (folder / "endpoints.yaml").write_text(endpoints(port, NOBODY))
    publisher.send(0, stored(1, count=3), lost=True)
    async with serving(folder, "--endpoints", "endpoints.yaml") as picker:
        await publisher.found()
        await counted(picker, "kv_cache_events_replay_completed_total")
        publisher.send(1, stored(90, parent=77), removed(1, 99))
        await counted(picker, "kv_cache_events_removals_skipped_total")
        await counted(picker, "kv_cache_events_zmq_errors_total")
        for _ in range(2):
            await converse(picker, LOOK, HURRIED)
        await converse(picker, CHAT, {"x-llm-d-inference-objective": "low"})
        strict = await Exchange.begin(picker, CHAT, {"x-llm-d-disagg-revision": "nowhere"})
        assert (await strict.decided())[0] == 503
        await counted(picker, "request_slo_violation_total")
        await counted(picker, "kv_cache_events_subscriber_reconnections_total")
        await counted(picker, "kv_cache_events_replay_failures_total")
        await shown.look_at(picker)


async def former(folder: Path, shown: Pages, port: int) -> None:
    """The handler of before `disagg-profile-handler`."""
    (folder / "config.yaml").write_text(FORMER)
    (folder / "endpoints.yaml").write_text(endpoints(port))
    async with serving(folder, "--endpoints", "endpoints.yaml", "--emit-endpoint-scores") as picker:
        exchange = await Exchange.begin(picker, CHAT)
        assert (await exchange.decided())[0] == 0
        assert exchange.scores == {f"127.0.0.1:{port}": 0.0}, "llm-d tells no scores under this handler"
        await exchange.answer()
        await counted(picker, "pd_decision_total")
        await shown.look_at(picker)


def differences(shown: Mapping[str, Shown]) -> list[str]:
    """What is not as the catalogue says."""
    found = [f"{name} is no family of llm-d's" for name in shown.keys() - CATALOGUE.keys()]
    for name, row in CATALOGUE.items():
        family = shown.get(name)
        if family is None or not family.samples:
            found.append(f"{name} is not shown")
            continue
        if family.type != row["type"]:
            found.append(f"{name} is a {family.type}, not a {row['type']}")
        if any(labels - OF_PLUGINS != set(row["labels"]) - OF_PLUGINS for labels in family.labels):
            found.append(f"{name} has the labels {family.labels}, not {row['labels']}")
        if row["type"] == "histogram" and family.bounds != set(map(float, row["buckets"])):
            found.append(f"{name} has the buckets {sorted(family.bounds)}")
    return sorted(found)


async def test_every_family_is_shown_by_a_run_that_has_use_for_it(tmp_path, monkeypatch, make_distribution):
    curious = make_distribution("curious", {"curious": "curious_scorer:Curious"}, modules={"curious_scorer": CURIOUS})
    shown = Pages()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(pages.serving(server))
        for variable in ("TRAINING_SERVER_URL", "PREDICTION_SERVER_URL"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        publisher = Publisher(replay=True)
        stack.callback(publisher.close)
        await queues(tmp_path, shown, port, curious)
        await stages(tmp_path, shown, port, publisher)
        await former(tmp_path, shown, port)
    assert differences(shown) == []
