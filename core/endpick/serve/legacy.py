"""The names that llm-d gave its metrics before August 2026, for dashboards that still ask for them.

A twin repeats a family under its old name, at scrape time. Old families have fewer labels: samples that differ only in labels that are
left out are added up. Histograms keep the buckets of the new family, also where the old one had more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from endpick.serve.metrics import PREFIX
from endpick.serve.text_page import CollectorInTurns


@dataclass(frozen=True, slots=True)
class Twin:
    """One old family.

    Attributes:
        old: Its name.
        new: The family it repeats, without `llm_d_epp_`.
        labels: Old label by new label; others are left out.
        only: Labels that a sample must have to count.
    """

    old: str
    new: str
    labels: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_MODELS = _same("model_name", "target_model_name")
_POOL = _same("name")
_FLOW = _same("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_DECISION = _same("model_name", "decision_type")
_OBJECTIVE, _EXTENSION, _SCHEDULER = "inference_objective_", "inference_extension_", "llm_d_inference_scheduler_"

TWINS = (
    Twin(_OBJECTIVE + "request_total", "request_total", _MODELS | _same("priority")),
    Twin(_OBJECTIVE + "request_error_total", "request_error_total", _MODELS | _same("error_code")),
    Twin(_OBJECTIVE + "inference_request_metric", "inference_request_metric", _MODELS | _same("type")),
    Twin(_OBJECTIVE + "request_ttft_seconds", "request_ttft_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_predicted_ttft_seconds", "request_predicted_ttft_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_ttft_prediction_duration_seconds", "request_ttft_prediction_duration_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_tpot_seconds", "request_streaming_tpot_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_predicted_tpot_seconds", "request_predicted_tpot_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_tpot_prediction_duration_seconds", "request_tpot_prediction_duration_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_slo_violation_total", "request_slo_violation_total", _MODELS | _same("type")),
    Twin(_OBJECTIVE + "request_duration_seconds", "request_duration_seconds", _MODELS),
    Twin(_OBJECTIVE + "request_sizes", "request_size_bytes", _MODELS),
    Twin(_OBJECTIVE + "response_sizes", "response_size_bytes", _MODELS),
    Twin(_OBJECTIVE + "input_tokens", "request_input_tokens", _MODELS),
    Twin(_OBJECTIVE + "output_tokens", "request_output_tokens", _MODELS),
    Twin(_OBJECTIVE + "prompt_cached_tokens", "request_cached_tokens", _MODELS),
    Twin(_OBJECTIVE + "running_requests", "request_running", _same("model_name")),
    Twin(_OBJECTIVE + "normalized_time_per_output_token_seconds", "request_ntpot_seconds", _MODELS),
    Twin("inference_pool_average_kv_cache_utilization", "average_kv_cache_utilization", _POOL),
    Twin("inference_pool_average_queue_size", "average_queue_size", _POOL),
    Twin("inference_pool_average_running_requests", "average_running_requests", _POOL),
    Twin("inference_pool_ready_pods", "ready_endpoints", _POOL),
    Twin("inference_pool_per_pod_queue_size", "per_endpoint_queue_size", _POOL | {"model_server_endpoint": "model_server_pod"}),
    Twin(_EXTENSION + "scheduler_e2e_duration_seconds", "scheduler_e2e_duration_seconds"),
    Twin(
        _EXTENSION + "scheduler_attempts_total",
        "scheduler_attempts_total",
        _same("status", "target_model_name", "namespace", "port") | {"endpoint_name": "pod_name"},
    ),
    Twin(_EXTENSION + "plugin_duration_seconds", "plugin_duration_seconds", _same("extension_point", "plugin_type", "plugin_name")),
    Twin(_EXTENSION + "prefix_indexer_size", "prefix_indexer_size"),
    Twin(_EXTENSION + "prefix_indexer_hit_ratio", "prefix_indexer_hit_ratio"),
    Twin(_EXTENSION + "prefix_indexer_hit_bytes", "prefix_indexer_hit_bytes"),
    Twin(_EXTENSION + "info", "info", _same("commit", "build_ref")),
    Twin(
        _EXTENSION + "flow_control_request_queue_duration_seconds", "flow_control_request_queue_duration_seconds", _FLOW | _same("outcome")
    ),
    Twin(_EXTENSION + "flow_control_dispatch_cycle_duration_seconds", "flow_control_dispatch_cycle_duration_seconds"),
    Twin(
        _EXTENSION + "flow_control_request_enqueue_duration_seconds",
        "flow_control_request_enqueue_duration_seconds",
        _same("fairness_id", "priority", "outcome"),
    ),
    Twin(_EXTENSION + "flow_control_queue_size", "flow_control_queue_size", _FLOW),
    Twin(_EXTENSION + "flow_control_queue_bytes", "flow_control_queue_bytes", _FLOW),
    Twin(_EXTENSION + "flow_control_pool_saturation", "flow_control_pool_saturation", _same("inference_pool"), {"stage": "effective"}),
    Twin(
        _EXTENSION + "model_rewrite_decisions_total",
        "model_rewrite_decisions_total",
        _same("model_rewrite_name", "model_name", "target_model"),
    ),
    *(
        Twin(f"kvcache_index_{name}", f"kv_cache_index_{name}")
        for name in (
            "admissions_total",
            "evictions_total",
            "lookup_requests_total",
            "lookup_hits_total",
            "max_pod_hit_count_total",
            "lookup_latency_seconds",
        )
    ),
    Twin("kvcache_kvevents_dedup_removed_hashes_suppressed_total", "kv_cache_events_dedup_removed_hashes_suppressed_total"),
    Twin("kvcache_kvevents_dedup_removed_hashes_forwarded_total", "kv_cache_events_dedup_removed_hashes_forwarded_total"),
    Twin(_SCHEDULER + "disagg_decision_total", "disagg_decision_total", _DECISION),
    Twin(_SCHEDULER + "pd_decision_total", "pd_decision_total", _DECISION),
    Twin(_SCHEDULER + "datalayer_poll_errors_total", "datalayer_poll_errors_total", _same("source_type")),
    Twin(_SCHEDULER + "datalayer_extract_errors_total", "datalayer_extract_errors_total", _same("source_type", "extractor_type")),
)
"""Every old family; those appear whose new one does."""

_TWIN_OF = {PREFIX + twin.new.removesuffix("_total"): twin for twin in TWINS}

_Sums = dict[tuple[str, tuple[tuple[str, str], ...]], float]


_SAMPLES_AT_ONCE = 1000
"""Of a family under its old name, between two turns of others."""


class LegacyTwins(CollectorInTurns):
    """What another collector shows, and after it the same under the old names."""

    def __init__(self, collector: Collector) -> None:
        """`collector` gives the families under their new names, one perhaps in several parts."""
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """All families as they are now, long ones in several parts; called for every scrape."""
        return (family for family in self.in_turns() if family is not None)

    def in_turns(self) -> Iterator[Metric | None]:
        """The same, and None wherever the other collector has it, and between the parts of what is added up."""
        sums: dict[str, _Sums] = {}
        types: dict[str, str] = {}
        collector = self._collector
        for family in collector.in_turns() if isinstance(collector, CollectorInTurns) else collector.collect():
            yield family
            if family is not None and family.name in _TWIN_OF:
                types[family.name] = family.type
                _add(family, _TWIN_OF[family.name], sums.setdefault(family.name, {}))
        for name, totals in sums.items():
            yield from _parts(_TWIN_OF[name], types[name], totals)


def _add(family: Metric, twin: Twin, sums: _Sums) -> None:
    """Add the samples of a family to those with the same labels under the old name; the order is that of the first."""
    for sample in family.samples:
        if twin.only.items() <= sample.labels.items():
            labels = {old: sample.labels[new] for new, old in twin.labels.items() if new in sample.labels}
            if "le" in sample.labels:
                labels["le"] = sample.labels["le"]
            key = sample.name.removeprefix(family.name), tuple(labels.items())
            sums[key] = sums.get(key, 0.0) + sample.value


def _parts(twin: Twin, kind: str, sums: _Sums) -> Iterator[Metric | None]:
    family = _family(twin, kind)
    for (suffix, labels), value in sums.items():
        if len(family.samples) >= _SAMPLES_AT_ONCE:
            yield family
            yield None
            family = _family(twin, kind)
        family.add_sample(family.name + suffix, dict(labels), value)
    yield family


def _family(twin: Twin, kind: str) -> Metric:
    return Metric(twin.old.removesuffix("_total"), f"Deprecated name of {PREFIX}{twin.new}.", kind)
