"""The metrics of several workers as one page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from endpick.serve.workers.pages import MergedPages


def page(requests, running, ready):
    registry = CollectorRegistry()
    counter = Counter("requests", "Requests.", ["model"], registry=registry)
    histogram = Histogram("seconds", "Seconds.", registry=registry, buckets=(1, 5))
    for model, count in requests.items():
        counter.labels(model).inc(count)
        histogram.observe(count)
    Gauge("llm_d_epp_request_running", "Running.", registry=registry).set(running)
    Gauge("endpick_ready", "Ready.", registry=registry).set(ready)
    return generate_latest(registry).decode()


def merged(*pages):
    text = generate_latest(MergedPages(pages)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_counts_and_load_add_up_and_of_states_the_largest_counts():
    found = merged(page({"a": 2, "b": 3}, 4, 1), page({"a": 10}, 5, 0))
    assert found == {
        ("requests_total", "a"): 12,
        ("requests_total", "b"): 3,
        ("seconds_bucket", "1.0"): 0,
        ("seconds_bucket", "5.0"): 2,
        ("seconds_bucket", "+Inf"): 3,
        ("seconds_count",): 3,
        ("seconds_sum",): 15,
        ("llm_d_epp_request_running",): 9,
        ("endpick_ready",): 1,
    }


def test_one_page_stays_as_it_is():
    assert merged(page({"a": 2}, 4, 1)) == merged(page({"a": 2}, 4, 1), page({}, 0, 0)) | {("seconds_count",): 1}


def test_ended_workers_keep_what_they_have_counted():
    one = "# TYPE asked_total counter\nasked_total 3.0\n# TYPE load gauge\nload 9.0\n"
    other = "# TYPE asked_total counter\nasked_total 2.0\n# TYPE load gauge\nload NaN\n"
    merged = generate_latest(MergedPages([other], [one])).decode()
    assert "\nasked_total 5.0\n" in merged
    assert "\nload NaN\n" in merged
    again = generate_latest(MergedPages([other, one.replace("9.0", "4.0")], [merged])).decode()
    assert "\nasked_total 10.0\n" in again
    assert "\nload 4.0\n" in again
