"""The old names of llm-d's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from endpick.api import Usage
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.host.telemetry import NullTelemetry
from endpick.serve.admin import Exposition
from endpick.serve.legacy import OLD_NAMES, LegacyNames
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import Recorder
from unit.scheduling.workbench import Pace


def renamed(registry: CollectorRegistry) -> LegacyNames:
    return LegacyNames(Exposition(registry, None, tuple, NullTelemetry()))


def samples(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of the page with the old names, by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in renamed(registry).collect():
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} is there twice"
            found[sample.name][labels] = sample.value
    return found


def test_tenants_are_added_up_under_the_old_name():
    registry = CollectorRegistry()
    recorder = Recorder(EndpickMetrics(registry), lambda: 0.0, max_combinations=200)
    for number in range(40):
        recorder.request_decided("m", "t", f"tenant-{number}", 0, 100, 0.001)
        end = ResponseEnd(TerminationCause.NATURAL, 200, Usage(10, 20, 5), 9, 0.3, 0.1)
        recorder.request_ended("m", "t", f"tenant-{number}", 0, end, Pace())
    page = samples(registry)
    models = (("model_name", "m"), ("target_model_name", "t"))
    assert page["inference_objective_request_total"] == {(("model_name", "m"), ("priority", "0"), ("target_model_name", "t")): 40.0}
    assert page["inference_objective_input_tokens_sum"] == {models: 400.0}
    assert page["inference_objective_request_sizes_count"] == {models: 40.0}
    assert page["inference_objective_request_duration_seconds_bucket"][("le", "0.2"), *models] == 0.0
    assert page["inference_objective_request_duration_seconds_bucket"][("le", "0.4"), *models] == 40.0
    assert page["inference_objective_running_requests"] == {(("model_name", "m"),): 0.0}
    assert page["inference_extension_scheduler_e2e_duration_seconds_count"] == {(): 0.0}
    assert page["inference_extension_model_rewrite_decisions_total"] == {
        (("model_name", "m"), ("model_rewrite_name", "header"), ("target_model", "t")): 40.0
    }
    assert generate_latest(renamed(registry)).count(b"# TYPE inference_objective_request_total counter") == 1


def test_labels_get_their_old_names():
    registry = CollectorRegistry()
    queue = Gauge("llm_d_epp_per_endpoint_queue_size", "x", ["name", "model_server_endpoint"], registry=registry)
    queue.labels("pool", "a").set(3)
    saturation = Gauge("llm_d_epp_flow_control_pool_saturation", "x", ["inference_pool", "stage"], registry=registry)
    saturation.labels("pool", "effective").set(0.5)
    saturation.labels("pool", "prefill").set(0.9)
    hits = Histogram("llm_d_epp_prefix_indexer_hit_ratio", "x", ["plugin_name", "plugin_type"], registry=registry, buckets=(0.5, 1.0))
    hits.labels("one", "t").observe(0.2)
    hits.labels("two", "t").observe(0.7)
    page = samples(registry)
    assert page["inference_pool_per_pod_queue_size"] == {(("model_server_pod", "a"), ("name", "pool")): 3.0}
    assert page["inference_extension_flow_control_pool_saturation"] == {(("inference_pool", "pool"),): 0.5}
    assert page["inference_extension_prefix_indexer_hit_ratio_bucket"] == {(("le", "0.5"),): 1, (("le", "1.0"),): 2, (("le", "+Inf"),): 2}


def test_families_without_an_old_name_are_not_repeated():
    registry = CollectorRegistry()
    Counter("llm_d_epp_something_else_total", "x", registry=registry).inc()
    assert set(samples(registry)) <= {"llm_d_epp_something_else_total", "llm_d_epp_something_else_created"}


def test_old_names_are_unique():
    assert len({name.old for name in OLD_NAMES}) == len({name.new for name in OLD_NAMES}) == len(OLD_NAMES)
