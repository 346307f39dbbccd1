"""Bounds of labels with values that clients choose."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, generate_latest

from endpick.api import Endpoint, ResponseEnd, TerminationCause, Usage
from endpick.api.metrics import LabelLimit
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import MOST_PRIORITIES, Recorder
from unit.scheduling.workbench import Pace

DONE = ResponseEnd(TerminationCause.NATURAL, 200, Usage(10, 20, 5), 9, 0.1, 0.1)


def test_client_chosen_labels_are_bounded():
    limit = LabelLimit(maximum=2)

    assert [limit(value) for value in ("a", "b", "a", "c", "d", "b")] == ["a", "b", "a", "other", "other", "b"]


def test_client_chosen_labels_are_cut():
    limit = LabelLimit(maximum=1)

    assert [limit("a" * 1000), limit("a" * 128 + "b"), limit("b")] == ["a" * 128, "a" * 128, "other"]


def test_labels_are_cut_by_bytes_between_characters():
    limit = LabelLimit()

    assert limit("a" + "\U0001f600" * 200) == "a" + "\U0001f600" * 31
    assert limit("é" * 64 + "x") == "é" * 64
    assert limit("\ud800" * 200) == "?" * 128


def series(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of one metric by those of its labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_combinations_beyond_the_limit_are_counted_as_other(registry, clock, caplog):
    recorder = Recorder(EndpickMetrics(registry), clock, max_combinations=3)
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            recorder.request_scheduled(0.001, Endpoint("default/a", "10.0.0.1", 8000), f"m{number}")
            recorder.request_decided(f"m{number}", f"m{number}", f"tenant-{number}", 0, 10, 0.004)
            recorder.request_ended(f"m{number}", f"m{number}", f"tenant-{number}", 0, DONE, Pace())
            recorder.request_refused(f"r{number}", f"r{number}", "x", 0, "BadRequest")

    own = [(f"tenant-{n}", f"m{n}", "0", f"m{n}") for n in range(2)]
    assert series(registry, "llm_d_epp_request_total") == {**dict.fromkeys(own, 1.0), ("other", "other", "0", "other"): 198.0}
    durations = series(registry, "llm_d_epp_request_duration_seconds_count")
    assert durations == {own[0]: 1.0, ("other", "other", "0", "other"): 199.0}
    assert len(series(registry, "llm_d_epp_request_error_total")) == 2
    attempts = series(registry, "llm_d_epp_scheduler_attempts_total")
    assert sorted(attempts.values()) == [1.0, 199.0]
    assert set(series(registry, "llm_d_epp_request_running").values()) == {0.0}
    assert registry.get_sample_value("endpick_metric_overflows_total") > 198
    assert sum("--metrics-max-combinations" in record.getMessage() for record in caplog.records) == 1


def test_a_page_of_3000_made_up_names_has_at_most_2_mb(registry, clock):
    recorder = Recorder(EndpickMetrics(registry), clock)
    for number in range(3000):
        model, tenant = f"made-up-model-{number}", f"made-up-tenant-{number}"
        recorder.request_scheduled(0.001, Endpoint(f"default/{number % 4}", f"10.0.0.{number % 4}", 8000), model)
        recorder.request_decided(model, model, tenant, number % 3, 1000, 0.001)
        recorder.request_ended(model, model, tenant, number % 3, DONE, Pace(streaming=True))
        recorder.request_refused(model, model, tenant, number % 3, "TooManyRequests")

    assert len(generate_latest(registry)) <= 2_000_000


def test_priorities_are_kept_beyond_the_limit(registry, clock):
    recorder = Recorder(EndpickMetrics(registry), clock, max_combinations=1)
    for number in range(5):
        recorder.request_decided(f"m{number}", "t", "f", number % 2 - 1, 10, 0.004)

    assert series(registry, "llm_d_epp_request_total") == {
        ("f", "m0", "-1", "t"): 1.0,
        ("other", "other", "-1", "other"): 2.0,
        ("other", "other", "0", "other"): 2.0,
    }


def test_priorities_are_bounded(registry, clock):
    recorder = Recorder(EndpickMetrics(registry), clock, max_combinations=1)
    for number in range(3 * MOST_PRIORITIES):
        recorder.request_decided("m", "t", "f", number, 10, 0.004)
        recorder.request_ended("m", "t", "f", number, DONE, Pace())
        recorder.request_refused("m", "t", "f", number, "BadRequest")

    counts = series(registry, "llm_d_epp_request_total")
    assert len(counts) == 1 + MOST_PRIORITIES + 1
    assert counts["other", "other", "other", "other"] == 3 * MOST_PRIORITIES - 1 - MOST_PRIORITIES
    assert len(recorder._models) == len(counts) == len(series(registry, "llm_d_epp_request_error_total"))
    assert set(series(registry, "llm_d_epp_request_running").values()) == {0.0}


def test_long_names_share_the_cut_label(recorder, registry):
    for end in "abc":
        recorder.request_scheduled(0.001, None, "m" * 1_000_000 + end)
        recorder.request_decided("m" * 1_000_000 + end, "t" * 500 + end, "f" * 500, 0, 10, 0.004)

    cut = ("f" * 128, "m" * 128, "0", "t" * 128)
    assert series(registry, "llm_d_epp_request_total") == {cut: 3.0}
    assert list(series(registry, "llm_d_epp_scheduler_attempts_total").values()) == [3.0]
    assert all(len(part) <= 128 for key in (*recorder._models, *recorder._combination._known) for part in key[:3])


def test_surrogates_in_names_keep_the_page_writable(recorder, registry):
    for _ in range(2):
        recorder.request_decided("half \ud800", "\ud800", "f", 0, 10, 0.004)
        recorder.request_scheduled(0.1, Endpoint("default/a", "10.0.0.1", 8000), "\ud800")
    recorder.request_refused("half \ud800", "\ud800", "f", 0, "BadRequest")
    written = generate_latest(registry).decode()
    assert 'llm_d_epp_request_total{fairness_id="f",model_name="half ?",priority="0",target_model_name="?"} 2.0' in written
