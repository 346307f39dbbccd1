"""Every built-in plugin passes the kit that third parties use."""

from __future__ import annotations

from endpick.api import DataCollector, Endpoint, EndpointChange, EndpointEvent, MetricsPage
from endpick.api.keys import CACHE_BLOCK_SIZE, ServedModel
from endpick.host.discovery import Candidate, discover
from endpick.host.kinds import kinds_of
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.testing import conformance, parametrize_conformance
from endpick.testing.kit import CheckStatus
from endpick_builtin.collection.core_metrics import CoreMetricsExtractor
from endpick_builtin.collection.exporters import DcgmExtractor, MulticlusterMetricsExtractor
from endpick_builtin.collection.otlp import OtlpSource
from endpick_builtin.collection.pool_data import HttpPoolSource, JsonDocument, JsonValuesExtractor
from endpick_builtin.collection.sources import ModelList, ModelsDataExtractor, TopologyExtractor
from endpick_builtin.filters.labels import ByLabelFilter
from endpick_builtin.producers.burst_prefix import BurstPrefixCacheProducer
from endpick_builtin.producers.session import SessionIdProducer
from endpick_kubernetes.discovery import KubernetesDiscovery

VLLM_PAGE = MetricsPage(
    b"vllm:num_requests_waiting 3\n"
    b"vllm:num_requests_running 2\n"
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


CLASSES = list(dict.fromkeys(loaded_class(one) for one in discover() if one.is_builtin))


NEED_PARAMETERS = {BurstPrefixCacheProducer, ByLabelFilter, HttpPoolSource, KubernetesDiscovery, OtlpSource, SessionIdProducer}


@parametrize_conformance([plugin for plugin in CLASSES if set(kinds_of(plugin)) != {DataCollector} and plugin not in NEED_PARAMETERS])
def test_builtin_conforms(check):
    check()


@parametrize_conformance([SessionIdProducer], parameters={"headerName": "X-Session-Id"}, examples=[{"cookieName": "session"}])
def test_session_id_producer_conforms(check):
    check()


@parametrize_conformance([BurstPrefixCacheProducer], parameters={"windowDurationMs": 1})
def test_burst_prefix_cache_producer_conforms(check):
    check()


@parametrize_conformance([ByLabelFilter], parameters={"label": "llm-d.ai/role", "validValues": ["decode"]})
def test_by_label_conforms(check):
    check()


@parametrize_conformance([KubernetesDiscovery], parameters={"poolName": "pool"})
def test_kubernetes_discovery_conforms(check, monkeypatch, tmp_path):
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    check()


@parametrize_conformance([CoreMetricsExtractor], payloads=[VLLM_PAGE])
def test_core_metrics_extractor_conforms(check):
    check()


@parametrize_conformance([ModelsDataExtractor], payloads=[ModelList((ServedModel("base"), ServedModel("a", "base")))])
def test_models_data_extractor_conforms(check):
    check()


@parametrize_conformance([HttpPoolSource], parameters={"url": "http://127.0.0.1:9/pool.json"}, examples=[{"path": "pool.json"}])
def test_http_pool_source_conforms(check):
    check()


@parametrize_conformance([OtlpSource], parameters={"port": 0})
def test_otlp_source_conforms(check):
    check()


PRICES = {"values": [{"attributeKey": "price", "pointer": "/price"}, {"attributeKey": "quota", "pointer": "/quota", "perEndpoint": True}]}


@parametrize_conformance(
    [JsonValuesExtractor],
    parameters=PRICES,
    payloads=[JsonDocument({"price": 2.5, "quota": {f"default/e{n}": n for n in range(16)}})],
)
def test_json_values_extractor_conforms(check):
    check()


@parametrize_conformance([TopologyExtractor], payloads=[EndpointEvent(EndpointChange.ADDED, Endpoint("default/a", "127.0.0.1", 8000))])
def test_topology_extractor_conforms(check):
    check()


@parametrize_conformance([DcgmExtractor], payloads=[MetricsPage(b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 40\n')])
def test_dcgm_extractor_conforms(check):
    check()


@parametrize_conformance([MulticlusterMetricsExtractor], payloads=[CLUSTER_PAGE])
def test_multicluster_metrics_extractor_conforms(check):
    check()


FED_ABOVE = {CoreMetricsExtractor, ModelsDataExtractor, TopologyExtractor, DcgmExtractor, MulticlusterMetricsExtractor, JsonValuesExtractor}


def test_no_collector_is_forgotten():
    assert {plugin for plugin in CLASSES if set(kinds_of(plugin)) == {DataCollector}} == FED_ABOVE


def test_a_collector_without_payloads_is_judged_by_everything_else():
    outcomes = {outcome.check.id: outcome.status for outcome in conformance(CoreMetricsExtractor).outcomes}

    assert {check for check, status in outcomes.items() if status is CheckStatus.SKIPPED} == NEED_PAYLOADS
    assert set(outcomes.values()) == {CheckStatus.SKIPPED, CheckStatus.PASSED}


def test_a_page_that_lacks_a_declared_key_is_noticed():
    page = MetricsPage(VLLM_PAGE.body.replace(b"block_size", b"block"))

    (fault,) = conformance(CoreMetricsExtractor, payloads=[page]).faults

    assert [finding.message for finding in fault.findings] == [
        f"the data key '{CACHE_BLOCK_SIZE.name}' is in `produces` and was never written"
    ]
