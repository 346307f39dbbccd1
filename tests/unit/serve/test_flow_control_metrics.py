"""The metrics of flow control."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import yaml_files
from endpick.flow_control.queues import WaitEnd
from endpick.serve.pool_metrics import FlowControlMetrics
from endpick.serve.recorder import MOST_PRIORITIES
from unit.flow_control.queue_bench import Bench, band, settings

FIXTURE = Path(__file__).parents[2] / "fixtures/metrics/catalogue.yaml"
CATALOGUE = {
    row["name"]: row for row in yaml_files.load(FIXTURE) if row["name"].startswith("flow_control_") and row["when"] == "flow control"
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def busy(registry: CollectorRegistry, **keywords) -> Bench:
    """A bench that reports to the metrics."""
    bench = Bench(settings(max_requests=4, max_bytes=100, template=band(max_requests=4, max_bytes=50)), **keywords)
    bench.controller._report = FlowControlMetrics(registry, "the-pool", 250, lambda: None)
    return bench


def test_metrics_have_llm_ds_types_labels_and_buckets(registry):
    bench = busy(registry)
    report = bench.controller._report
    bench.offer("waits")
    bench.controller.dispatch()
    bench.controller.leave(bench.entries["waits"])
    report.revoked(-1, 0.5, 0.1)
    report.confirmed("confirmed", 0.02)
    found = {family.name.removeprefix("llm_d_epp_"): family for family in registry.collect()}
    for name, row in CATALOGUE.items():
        family = found[name.removesuffix("_total")]
        assert family.type == row["type"], name
        labels = set().union(*(sample.labels.keys() for sample in family.samples)) - {"le"}
        assert labels == set(row["labels"]), name
        bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels} - {float("inf")}
        assert bounds == set(row.get("buckets", ())), name


def test_metrics_count_waiting_requests_and_outcomes(registry):
    bench = busy(registry, saturation=1.5)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"llm_d_epp_flow_control_{name}", {"inference_pool": "the-pool", **labels})

    flow = {"fairness_id": "a", "priority": "0", "model_name": "", "target_model_name": "m"}
    bench.offer("first", size=30)
    bench.offer("second", size=20)
    bench.offer("no room", size=1)
    assert value("queue_size", **flow) == 2
    assert value("queue_bytes", **flow) == 50
    assert value("capacity_utilization_requests", priority="0") == 0.5
    assert value("capacity_utilization_bytes", priority="0") == 1.0
    assert value("global_capacity_utilization_requests") == 0.5
    assert value("global_capacity_utilization_bytes") == 0.5
    bench.controller.dispatch()
    assert value("pool_saturation", stage="effective") == 1.5
    assert value("pool_saturation", stage="decode") == 1.5
    assert value("pool_saturation", stage="prefill") is None
    bench.now += 7.0
    bench.saturation = 0.0
    assert bench.gone() == ["first", "second"]
    assert bench.controller.may_pass(bench.request("passes"))
    assert value("queue_size", **flow) == value("queue_bytes", **flow) == 0
    assert value("requests_total", outcome="Dispatched", priority="0") == 3
    assert value("requests_total", outcome="RejectedCapacity", priority="0") == 1
    assert value("request_queue_duration_seconds_sum", outcome="Dispatched", **flow) == 14.0
    assert value("request_queue_duration_seconds_bucket", outcome="Dispatched", le="0.0001", **flow) == 1


def test_fairness_ids_beyond_the_limit_share_labels(registry):
    overflows = []
    bench = Bench(settings(template=band(max_requests=10_000, fairness="any")), any=lambda each: next(iter(each.flows)))
    bench.controller._report = FlowControlMetrics(registry, "the-pool", 5, lambda: overflows.append(1))
    for number in range(100):
        bench.offer(str(number), f"tenant-{number}")
    sizes = [family for family in registry.collect() if family.name == "llm_d_epp_flow_control_queue_size"]
    samples = {sample.labels["fairness_id"]: sample.value for family in sizes for sample in family.samples}
    assert len(samples) == 6
    assert samples["other"] == 95
    assert overflows
    bench.controller.end_all(WaitEnd.SHUT_DOWN)
    assert sum(sample.value for family in registry.collect() if "queue_size" in family.name for sample in family.samples) == 0


def test_priorities_beyond_the_limit_share_labels(registry):
    bench = Bench(settings(template=band(max_requests=10_000, fairness="any")), any=lambda each: next(iter(each.flows)))
    report = bench.controller._report = FlowControlMetrics(registry, "the-pool", 5, lambda: None)
    for priority in range(3 * MOST_PRIORITIES):
        bench.offer(str(priority), priority=priority)
        report.revoked(priority, 0.5, 0.1)
    bench.controller.end_all(WaitEnd.SHUT_DOWN)
    for name in ("requests_total", "capacity_utilization_requests", "capacity_utilization_bytes", "revocations_issued_total"):
        samples = [sample for family in registry.collect() for sample in family.samples if sample.name == f"llm_d_epp_flow_control_{name}"]
        assert len({sample.labels["priority"] for sample in samples}) == MOST_PRIORITIES + 1, name
