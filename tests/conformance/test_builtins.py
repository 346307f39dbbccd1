"""Every built-in plugin passes the kit that third parties use."""

from __future__ import annotations

import pytest

from endpick.api import DataCollector, Endpoint, EndpointChange, EndpointEvent, MetricsPage
from endpick.api.keys import CACHE_BLOCK_SIZE, ServedModel
from endpick.host.discovery import Candidate, discover
from endpick.host.kinds import kinds_of
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.testing import conformance
from endpick.testing.kit import CheckStatus, describe_outcome
from endpick_builtin.collection.core_metrics import CoreMetricsExtractor
from endpick_builtin.collection.exporters import DcgmExtractor, MulticlusterMetricsExtractor
from endpick_builtin.collection.otlp import OtlpSource
from endpick_builtin.collection.pool_data import HttpPoolSource, JsonDocument, JsonValuesExtractor
from endpick_builtin.collection.sources import ModelList, ModelsDataExtractor, TopologyExtractor
from endpick_builtin.flow_control import PriorityHoldback
from endpick_builtin.label_filters import ByLabelFilter
from endpick_builtin.pairs.attributes import LabelProducer
from endpick_builtin.pairs.sessions import SessionIdProducer
from endpick_builtin.producers.burst_prefix import BurstPrefixCacheProducer
from endpick_kubernetes.discovery import KubernetesDiscovery

VLLM_PAGE = MetricsPage(
    b"vllm:num_requests_waiting 3\n"
    b"vllm:num_requests_running 2\n"
    b"vllm:nixl_num_failed_transfers_total 1\n"
    b"vllm:nixl_num_failed_notifications_total 2\n"
    b"vllm:nixl_num_kv_expired_reqs_total 3\n"
    b"vllm:kv_cache_usage_perc 0.25\n"
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="4000"} 1\n'
    b'vllm:lora_requests_info{running_lora_adapters="a",waiting_lora_adapters="",max_lora="4"} 1.7e9\n'
)
CLUSTER_PAGE = MetricsPage(b"llm_d_epp_average_kv_cache_utilization 0.5\nllm_d_epp_average_queue_size 3\n")
NEED_PAYLOADS = {"collector_reads_good_payloads", "writes_every_declared_key"}


def loaded_class(candidate: Candidate) -> type:
    loaded = load(candidate, Reference(candidate.type), ()).loaded
    assert loaded is not None
    return loaded.plugin


INSTALLED = discover()
CLASSES = list(dict.fromkeys(loaded_class(one) for one in INSTALLED if one.is_builtin))


PRICES = {"values": [{"attributeKey": "price", "pointer": "/price"}, {"attributeKey": "quota", "pointer": "/quota", "perEndpoint": True}]}
INPUTS = {
    BurstPrefixCacheProducer: {"parameters": {"windowDurationMs": 1}},
    ByLabelFilter: {"parameters": {"label": "llm-d.ai/role", "validValues": ["decode"]}},
    CoreMetricsExtractor: {"payloads": [VLLM_PAGE]},
    DcgmExtractor: {"payloads": [MetricsPage(b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 40\n')]},
    HttpPoolSource: {"parameters": {"url": "http://127.0.0.1:9/pool.json"}, "examples": [{"path": "pool.json"}]},
    JsonValuesExtractor: {
        "parameters": PRICES,
        "payloads": [JsonDocument({"price": 2.5, "quota": {f"default/e{n}": n for n in range(16)}})],
    },
    KubernetesDiscovery: {"parameters": {"poolName": "pool"}},
    ModelsDataExtractor: {"payloads": [ModelList((ServedModel("base"), ServedModel("a", "base")))]},
    MulticlusterMetricsExtractor: {"payloads": [CLUSTER_PAGE]},
    OtlpSource: {"parameters": {"port": 0}},
    LabelProducer: {"payloads": [EndpointEvent(EndpointChange.ADDED, Endpoint("default/a", "127.0.0.1", 8000))]},
    PriorityHoldback: {"parameters": {"minCeiling": 0.5}, "examples": [{"domain": "explicit", "ceilings": {"1": 0.9, "-1": 0.5}}]},
    SessionIdProducer: {"parameters": {"headerName": "X-Session-Id"}, "examples": [{"cookieName": "session"}]},
    TopologyExtractor: {"payloads": [EndpointEvent(EndpointChange.ADDED, Endpoint("default/a", "127.0.0.1", 8000))]},
}


@pytest.mark.parametrize("plugin", CLASSES, ids=lambda plugin: plugin.__name__)
def test_builtin_conforms(plugin, monkeypatch, tmp_path):
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    report = conformance(plugin, candidates=INSTALLED, **INPUTS.get(plugin, {}))

    assert report.conforms, "\n".join(describe_outcome(outcome, report.subject) for outcome in report.faults)
    if set(kinds_of(plugin)) == {DataCollector}:
        assert not NEED_PAYLOADS & {each.check.id for each in report.outcomes if each.status is CheckStatus.SKIPPED}


def test_collector_without_payloads_skips_only_their_checks():
    outcomes = {outcome.check.id: outcome.status for outcome in conformance(CoreMetricsExtractor).outcomes}

    assert {check for check, status in outcomes.items() if status is CheckStatus.SKIPPED} == NEED_PAYLOADS
    assert set(outcomes.values()) == {CheckStatus.SKIPPED, CheckStatus.PASSED}


def test_payload_without_a_declared_key_is_a_finding():
    page = MetricsPage(VLLM_PAGE.body.replace(b"block_size", b"block"))

    (fault,) = conformance(CoreMetricsExtractor, payloads=[page]).faults

    assert [finding.message for finding in fault.findings] == [
        f"the data key '{CACHE_BLOCK_SIZE.name}' is in `produces` and was never written"
    ]
