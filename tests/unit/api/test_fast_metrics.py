"""Counts and histograms of the request path say at a scrape what prometheus_client's own would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from endpick.api.fast_metrics import Counts, Distributions, Levels
from endpick.host.discovery import request_path

BOUNDS = (0.5, 1, 2.5, 10)


def exposed(registry: CollectorRegistry) -> list[str]:
    """Lines of a scrape, without the times of creation that only prometheus_client notes."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(BOUNDS) | st.floats(0, 20))))
def test_a_histogram_is_exposed_as_the_library_would(observed):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Distributions("size_bytes", "How big.", ("who",), BOUNDS, ours)
    library = Histogram("size_bytes", "How big.", ("who",), buckets=BOUNDS, registry=theirs)
    for who, value in observed:
        mine.labels(who).observe(value)
        library.labels(who).observe(value)
    assert exposed(ours) == exposed(theirs)


@given(st.lists(st.sampled_from(["a", "b"])))
def test_a_counter_is_exposed_as_the_library_would(events):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Counts("seen_total", "What was seen.", ("who",), ours)
    library = Counter("seen_total", "What was seen.", ("who",), registry=theirs)
    for who in events:
        mine.labels(who).inc()
        library.labels(who).inc()
    assert exposed(ours) == exposed(theirs)


def test_a_gauge_goes_up_and_down_as_the_library_would():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Levels("running", "Under way.", ("who",), ours).labels("a")
    library = Gauge("running", "Under way.", ("who",), registry=theirs).labels("a")
    for _ in range(2):
        mine.inc()
        library.inc()
    mine.value -= 1.0
    library.dec()
    assert exposed(ours) == exposed(theirs)


def test_members_of_equal_labels_are_one():
    counts = Counts("seen_total", "What was seen.", ("who", "where"), CollectorRegistry())
    assert counts.labels("a", "b") is counts.labels("a", "b")
    assert counts.labels("a", "b") is not counts.labels("b", "a")


def test_labels_that_are_missing_are_refused():
    counts = Counts("seen_total", "What was seen.", ("who", "where"), CollectorRegistry())
    with pytest.raises(ValueError, match="seen_total has the labels"):
        counts.labels("a")


def test_a_name_is_registered_once():
    registry = CollectorRegistry()
    Levels("running", "Under way.", (), registry)
    with pytest.raises(ValueError, match="running"):
        Counts("running", "Something else.", (), registry)


def test_without_a_registry_it_counts_for_nothing():
    Distributions("size_bytes", "How big.", ("who",), BOUNDS, None).labels("a").observe(1.0)
    Counts("seen_total", "What was seen.", ("who",), None).labels("a").inc()


@pytest.mark.skipif(request_path() == "compiled", reason="interpreted classes cannot inherit from compiled ones")
def test_members_may_be_added_while_metrics_are_collected():
    class Growing(Counts):
        """A request adds a member while a thread collects."""

        def _is_shown(self, member):
            self.labels(f"new {len(self.members())}")
            return True

    counts = Growing("requests_total", "Requests.", ("model",), None)
    counts.labels("a").inc()
    counts.labels("b").inc()

    (family,) = counts.collect()

    assert [sample.labels["model"] for sample in family.samples] == ["a", "b"]
