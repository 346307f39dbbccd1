"""llm-d's metrics under their names from before August 2026, for older dashboards.

Samples that differ only in dropped labels are added up. Histograms keep the new buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from endpick.api import hookimpl
from endpick.api.hooks import HostServices
from endpick.serve.metrics import PREFIX


@dataclass(frozen=True, slots=True)
class OldName:
    """Maps a metric family to its old name, and its labels to the old ones."""

    old: str
    new: str  # without the prefix `llm_d_epp_`
    labels: Mapping[str, str] = field(default_factory=dict)  # old by new; others are dropped
    only: Mapping[str, str] = field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_MODELS = _same("model_name", "target_model_name")
_POOL = _same("name")
_FLOW = _same("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_DECISION = _same("model_name", "decision_type")
_OBJECTIVE, _EXTENSION, _SCHEDULER = "inference_objective_", "inference_extension_", "llm_d_inference_scheduler_"

OLD_NAMES = (
    OldName(_OBJECTIVE + "request_total", "request_total", _MODELS | _same("priority")),
    OldName(_OBJECTIVE + "request_error_total", "request_error_total", _MODELS | _same("error_code")),
    OldName(_OBJECTIVE + "inference_request_metric", "inference_request_metric", _MODELS | _same("type")),
    OldName(_OBJECTIVE + "request_ttft_seconds", "request_ttft_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_predicted_ttft_seconds", "request_predicted_ttft_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_ttft_prediction_duration_seconds", "request_ttft_prediction_duration_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_tpot_seconds", "request_streaming_tpot_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_predicted_tpot_seconds", "request_predicted_tpot_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_tpot_prediction_duration_seconds", "request_tpot_prediction_duration_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_slo_violation_total", "request_slo_violation_total", _MODELS | _same("type")),
    OldName(_OBJECTIVE + "request_duration_seconds", "request_duration_seconds", _MODELS),
    OldName(_OBJECTIVE + "request_sizes", "request_size_bytes", _MODELS),
    OldName(_OBJECTIVE + "response_sizes", "response_size_bytes", _MODELS),
    OldName(_OBJECTIVE + "input_tokens", "request_input_tokens", _MODELS),
    OldName(_OBJECTIVE + "output_tokens", "request_output_tokens", _MODELS),
    OldName(_OBJECTIVE + "prompt_cached_tokens", "request_cached_tokens", _MODELS),
    OldName(_OBJECTIVE + "running_requests", "request_running", _same("model_name")),
    OldName(_OBJECTIVE + "normalized_time_per_output_token_seconds", "request_ntpot_seconds", _MODELS),
    OldName("inference_pool_average_kv_cache_utilization", "average_kv_cache_utilization", _POOL),
    OldName("inference_pool_average_queue_size", "average_queue_size", _POOL),
    OldName("inference_pool_average_running_requests", "average_running_requests", _POOL),
    OldName("inference_pool_ready_pods", "ready_endpoints", _POOL),
    OldName("inference_pool_per_pod_queue_size", "per_endpoint_queue_size", _POOL | {"model_server_endpoint": "model_server_pod"}),
    OldName(_EXTENSION + "scheduler_e2e_duration_seconds", "scheduler_e2e_duration_seconds"),
    OldName(
        _EXTENSION + "scheduler_attempts_total",
        "scheduler_attempts_total",
        _same("status", "target_model_name", "namespace", "port") | {"endpoint_name": "pod_name"},
    ),
    OldName(_EXTENSION + "plugin_duration_seconds", "plugin_duration_seconds", _same("extension_point", "plugin_type", "plugin_name")),
    OldName(_EXTENSION + "prefix_indexer_size", "prefix_indexer_size"),
    OldName(_EXTENSION + "prefix_indexer_hit_ratio", "prefix_indexer_hit_ratio"),
    OldName(_EXTENSION + "prefix_indexer_hit_bytes", "prefix_indexer_hit_bytes"),
    OldName(_EXTENSION + "info", "info", _same("commit", "build_ref")),
    OldName(
        _EXTENSION + "flow_control_request_queue_duration_seconds", "flow_control_request_queue_duration_seconds", _FLOW | _same("outcome")
    ),
    OldName(_EXTENSION + "flow_control_dispatch_cycle_duration_seconds", "flow_control_dispatch_cycle_duration_seconds"),
    OldName(
        _EXTENSION + "flow_control_request_enqueue_duration_seconds",
        "flow_control_request_enqueue_duration_seconds",
        _same("fairness_id", "priority", "outcome"),
    ),
    OldName(_EXTENSION + "flow_control_queue_size", "flow_control_queue_size", _FLOW),
    OldName(_EXTENSION + "flow_control_queue_bytes", "flow_control_queue_bytes", _FLOW),
    OldName(_EXTENSION + "flow_control_pool_saturation", "flow_control_pool_saturation", _same("inference_pool"), {"stage": "effective"}),
    OldName(
        _EXTENSION + "model_rewrite_decisions_total",
        "model_rewrite_decisions_total",
        _same("model_rewrite_name", "model_name", "target_model"),
    ),
    *(
        OldName(f"kvcache_index_{name}", f"kv_cache_index_{name}")
        for name in (
            "admissions_total",
            "evictions_total",
            "lookup_requests_total",
            "lookup_hits_total",
            "max_pod_hit_count_total",
            "lookup_latency_seconds",
        )
    ),
    OldName("kvcache_kvevents_dedup_removed_hashes_suppressed_total", "kv_cache_events_dedup_removed_hashes_suppressed_total"),
    OldName("kvcache_kvevents_dedup_removed_hashes_forwarded_total", "kv_cache_events_dedup_removed_hashes_forwarded_total"),
    OldName(_SCHEDULER + "disagg_decision_total", "disagg_decision_total", _DECISION),
    OldName(_SCHEDULER + "pd_decision_total", "pd_decision_total", _DECISION),
    OldName(_SCHEDULER + "datalayer_poll_errors_total", "datalayer_poll_errors_total", _same("source_type")),
    OldName(_SCHEDULER + "datalayer_extract_errors_total", "datalayer_extract_errors_total", _same("source_type", "extractor_type")),
)
_BY_FAMILY = {PREFIX + name.new.removesuffix("_total"): name for name in OLD_NAMES}


@hookimpl
def endpick_configure(services: HostServices) -> None:
    """Add the filter that repeats the families of `/metrics` under their old names."""
    services.metrics_filters.append(LegacyNames)


class LegacyNames(Collector):
    """Another collector's families, also under their old names."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        renamed: list[Metric] = []
        for family in self._collector.collect():
            yield family
            if family.name in _BY_FAMILY:
                renamed.append(_renamed(family, _BY_FAMILY[family.name]))
        yield from renamed


def _renamed(family: Metric, name: OldName) -> Metric:
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        if name.only.items() <= sample.labels.items():
            labels = {old: sample.labels[new] for new, old in name.labels.items() if new in sample.labels}
            if "le" in sample.labels:
                labels["le"] = sample.labels["le"]
            key = sample.name.removeprefix(family.name), tuple(labels.items())
            sums[key] = sums.get(key, 0.0) + sample.value
    old = Metric(name.old.removesuffix("_total"), f"Deprecated name of {PREFIX}{name.new}.", family.type)
    for (suffix, summed), value in sums.items():
        old.add_sample(old.name + suffix, dict(summed), value)
    return old
