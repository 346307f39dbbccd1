"""The old names of llm-d's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from endpick.api import Usage
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.serve.legacy import TWINS, LegacyTwins
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import Recorder
from endpick.serve.text_page import CollectorInTurns
from unit.scheduling.workbench import Pace


def samples(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of the page with the old names, by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in LegacyTwins(registry).collect():
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} is there twice"
            found[sample.name][labels] = sample.value
    return found


def test_requests_of_several_tenants_are_added_up_under_the_old_name():
    registry = CollectorRegistry()
    recorder = Recorder(EndpickMetrics(registry), lambda: 0.0)
    for number in range(40):  # more than a family has in one part
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
    assert generate_latest(LegacyTwins(registry)).count(b"# TYPE inference_objective_request_total counter") == 1


def test_labels_get_their_old_names_and_samples_that_had_no_place_are_left_out():
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


def test_families_without_an_old_name_have_no_twin():
    registry = CollectorRegistry()
    Counter("llm_d_epp_something_else_total", "x", registry=registry).inc()
    assert set(samples(registry)) <= {"llm_d_epp_something_else_total", "llm_d_epp_something_else_created"}


def test_no_old_name_stands_in_the_table_twice():
    assert len({twin.old for twin in TWINS}) == len({twin.new for twin in TWINS}) == len(TWINS)


class InTurns(CollectorInTurns):
    """What a registry shows, with a turn for others before and after it."""

    def __init__(self, registry):
        self.registry = registry

    def collect(self):
        return self.registry.collect()

    def in_turns(self):
        yield None
        yield from self.registry.collect()
        yield None


def test_others_have_their_turns_while_what_a_collector_shows_and_the_old_names_are_gathered():
    registry = CollectorRegistry()
    queues = Gauge("llm_d_epp_per_endpoint_queue_size", "x", ["name", "model_server_endpoint"], registry=registry)
    for number in range(4000):
        queues.labels("pool", f"{number}").set(number)
    shown = list(LegacyTwins(InTurns(registry)).in_turns())
    old = [family for family in shown if family is not None and family.name == "inference_pool_per_pod_queue_size"]
    assert [len(family.samples) for family in old] == [1000] * 4
    assert shown.count(None) == 2 + 3
    assert None not in list(LegacyTwins(InTurns(registry)).collect())
