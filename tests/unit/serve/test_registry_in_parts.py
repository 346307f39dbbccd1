"""What an instance has counted is read in parts: as `collect` gives it, and with turns for everything else between them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.serve import registry_in_parts
from endpick.serve.exposition import Exposition
from endpick.serve.registry_in_parts import RegistryInParts
from endpick.serve.text_page import page_of
from unit.scheduling.workbench import Recording, scorer_of


class Sizes(Collector):
    """A collector of a plugin's own."""

    def collect(self):
        yield GaugeMetricFamily("sizes", "Of things.", 3.0)
        yield GaugeMetricFamily("ages", "Of things.", 4.0)


class Doubled(Counter):
    """A counter that is shown in another way."""

    def collect(self):
        for family in super().collect():
            family.samples = [sample._replace(value=2 * sample.value) for sample in family.samples]
            yield family


def registry_of_each_kind() -> RegistryInParts:
    registry = RegistryInParts()
    counter = Counter("things", "Things.", ("kind", "place"), registry=registry)
    counter.labels("a", "here").inc()
    counter.labels("b", "there").inc(2)
    Counter("alone_total", "Without labels.", registry=registry).inc(5)
    Counter("none_yet", "Without combinations.", ("kind",), registry=registry)
    Gauge("level", "A level.", ("kind",), registry=registry).labels("a").set(0.5)
    Gauge("asked", "By a function.", registry=registry).set_function(lambda: 7.0)
    Histogram("took", "Seconds.", ("kind",), buckets=(1, 2), registry=registry).labels("a").observe(1.5)
    Summary("weighed", "Grams.", registry=registry).observe(3)
    Info("build", "What it is.", registry=registry).info({"version": "1"})
    Enum("state", "How it is.", states=["well", "ill"], registry=registry).state("ill")
    Doubled("twice", "Doubled.", registry=registry).inc(4)
    registry.register(Sizes())
    registry.set_target_info({"env": "test"})
    return registry


def test_what_is_read_in_parts_is_what_collect_gives():
    registry = registry_of_each_kind()
    gone = Gauge("gone", "Unregistered.", registry=registry)
    registry.unregister(gone)

    def shown(families):
        return [
            (family.name, family.documentation, family.type, [(each.name, each.labels, each.value) for each in family.samples])
            for family in families
        ]

    expected = shown(registry.collect())
    assert shown(registry.in_parts()) == expected
    assert [name for name, *_ in expected] == (
        ["target", "things", "alone", "none_yet", "level", "asked", "took", "weighed", "build", "state", "twice", "sizes", "ages"]
    )


def test_a_name_that_is_registered_twice_is_refused_and_the_first_stays():
    registry = RegistryInParts()
    Gauge("level", "A level.", registry=registry).set(1)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Gauge("level", "A level.", registry=registry)
    assert [family.name for family in registry.in_parts()] == ["level"]


@pytest.mark.asyncio
async def test_a_counter_of_twenty_thousand_labels_is_read_some_in_each_turn(monkeypatch):
    registry, read, most = RegistryInParts(), 0, 0
    counter = Counter("things", "Things.", ("kind",), registry=registry)
    for number in range(20_000):
        counter.labels(f"{number}").inc()
    samples_of = registry_in_parts._samples_of

    def counted(*given):
        nonlocal read
        for sample in samples_of(*given):
            read += 1
            yield sample

    monkeypatch.setattr(registry_in_parts, "_samples_of", counted)
    instance = replace(scorer_of(None, "a"), registry=registry)
    writing = asyncio.ensure_future(page_of(Exposition(RegistryInParts(), lambda: (instance,), Recording(), [].append)))
    while not writing.done():
        before = read
        await asyncio.sleep(0)
        most = max(most, read - before)
    assert (await writing).count(b"things_total{") == 20_000
    assert read == 40_000, "and when each of them was made"
    assert most <= 500
