"""The metrics of plugins next to the host's, also when one clashes or fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from endpick.serve import admin
from endpick.serve.admin import Exposition
from unit.scheduling.workbench import Recording, scorer_of


class Offering:
    """A collector that returns the same objects at each scrape, or raises."""

    def __init__(self, *families):
        self.families = families

    def describe(self):
        return ()

    def collect(self):
        for family in self.families:
            if isinstance(family, BaseException):
                raise family
            yield family


def plugin(name, *families):
    """An instance that offers these metrics."""
    built = scorer_of(None, name)
    if families:
        built.registry.register(Offering(*families))
    return built


def gauge(name, value, **labels):
    family = Metric(name, "A gauge.", "gauge")
    family.add_sample(name, labels, value)
    return family


@pytest.fixture
def recording():
    return Recording()


@pytest.fixture
def host():
    registry = CollectorRegistry()
    Counter("host_requests", "Requests.", registry=registry).inc(7)
    return registry


def page(host, recording, *instances, hooks=None):
    """Samples by name, as a scraper reads them."""
    exposition = Exposition(host, hooks, lambda: instances, recording)
    exposition.gather()
    text = generate_latest(exposition).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_instances_of_one_type_share_a_metric(host, recording):
    one, two = plugin("one"), plugin("two")
    for instance, value in ((one, 1), (two, 2)):
        Gauge("acme_size", "Size.", ["shard"], registry=instance.registry).labels("s").set(value)

    assert page(host, recording, one, two)["acme_size"] == [
        ({"shard": "s", "plugin_name": "one", "plugin_type": "test.one"}, 1.0),
        ({"shard": "s", "plugin_name": "two", "plugin_type": "test.two"}, 2.0),
    ]
    assert recording.faults == []


def test_repeated_scrapes_give_the_same_page(host, recording):
    instances = (plugin("one", gauge("acme_size", 1.0)), plugin("two", gauge("acme_size", 2.0)))
    collector = Exposition(host, None, lambda: instances, recording)
    collector.gather()

    assert generate_latest(collector) == generate_latest(collector)


def test_no_plugin_can_pass_for_another(host, recording):
    found = page(host, recording, plugin("one", gauge("acme_size", 1.0, plugin_name="two", plugin_type="queue-scorer")))

    assert found["acme_size"] == [({"plugin_name": "one", "plugin_type": "test.one"}, 1.0)]


def test_names_of_the_host_are_taken(host, recording):
    hooks = CollectorRegistry()
    hooks.register(Offering(gauge("host_requests", 98.0)))
    found = page(host, recording, plugin("one", gauge("host_requests", 99.0), gauge("acme_size", 1.0)), hooks=hooks)

    assert found["host_requests_total"] == [({}, 7.0)]
    assert found["acme_size"]
    assert recording.faults == [("one", "Metrics", "offers the metric 'host_requests', which is endpick's own")]


def test_one_name_with_two_types_keeps_the_first(host, recording):
    other = Metric("acme_size", "A counter.", "counter")
    other.add_sample("acme_size_total", {}, 5.0)
    found = page(host, recording, plugin("one", gauge("acme_size", 1.0)), plugin("two", other))

    assert [value for _, value in found["acme_size"]] == [1.0]
    assert "acme_size_total" not in found
    assert recording.faults == [("two", "Metrics", "offers the metric 'acme_size' as a counter, while another instance offers a gauge")]


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        (RuntimeError("no connection"), "RuntimeError: no connection"),
        (gauge("acme_size", "many"), "ValueError: could not convert string to float: 'many'"),
    ],
)
def test_a_failing_collector_of_a_plugin_is_left_out(host, recording, offered, problem):
    found = page(host, recording, plugin("broken", gauge("acme_part", 1.0), offered), plugin("sound", gauge("acme_size", 1.0)))

    assert "acme_part" not in found
    assert found["host_requests_total"] == [({}, 7.0)]
    assert found["acme_size"] == [({"plugin_name": "sound", "plugin_type": "test.sound"}, 1.0)]
    assert recording.faults == [("broken", "Metrics", problem)]


def test_a_failing_collector_of_a_hook_object_is_left_out(host, recording, caplog):
    hooks = CollectorRegistry()
    hooks.register(Offering(gauge("hooked", 1.0), ValueError("no")))
    found = page(host, recording, plugin("sound", gauge("acme_size", 1.0)), hooks=hooks)

    assert {"host_requests_total", "acme_size"} <= found.keys()
    assert "hooked" not in found
    assert "metrics of hook objects are left out: ValueError: no" in caplog.text


def test_a_plugin_with_too_many_samples_is_left_out(host, recording, monkeypatch):
    monkeypatch.setattr(admin, "MAX_SAMPLES", 2)
    found = page(host, recording, plugin("endless", *(gauge(f"acme_{n}", 1.0) for n in range(3))), plugin("sound", gauge("acme_size", 1)))

    assert {name for name in found if name.startswith("acme")} == {"acme_size"}
    assert recording.faults == [("endless", "Metrics", "offers more than 2 samples: find the label with too many values")]


def test_instances_without_a_registry_are_passed_over(host, recording):
    assert "host_requests_total" in page(host, recording, replace(plugin("one"), registry=None))
    assert recording.faults == []
