"""What `/metrics` shows: the host's own metrics, gauges over the pool, and those of each instance under labels of its own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Final

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from endpick.api.endpoints import FloatArray
from endpick.api.generation import Generation
from endpick.api.keys import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.api.request import shown
from endpick.host.apart import apart
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry
from endpick.serve.metrics import PREFIX
from endpick.serve.registry_in_parts import Family, RegistryInParts, parts_of
from endpick.serve.text_page import CollectorInTurns

MAX_SAMPLES = 100_000
"""Of an instance, on one page: some 15 MB. One with more has a label without measure, and would fill pages of gigabytes."""
_SAMPLES_AT_ONCE = 500
"""Of an instance: to read and copy one takes some 8 µs."""


class Exposition(CollectorInTurns):
    """The host's registry and the registries of the instances that serve now, as one.

    Each instance has a registry of its own, and its samples get the labels `plugin_name` and `plugin_type`. So two instances of a
    type never clash, nor does an instance clash with the one it replaces at a reload.
    """

    def __init__(
        self,
        host: RegistryInParts,
        instances: Callable[[], Iterable[Instance]],
        telemetry: Telemetry,
        failed: Callable[[BaseException], None],
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        """Keep what is needed.

        Args:
            host: Its own metrics, and those that hook objects have registered beside them.
            instances: Gives the instances that serve now.
            telemetry: Told of each of them whose metrics cannot be shown, are too many, or hold the event loop for longer than a call may.
            failed: Told why those of a collector of the host cannot be shown.
            max_samples: Of one instance, and of one collector that a hook object has registered.
        """
        self._host = host
        self._failed = failed
        self._instances = instances
        self._telemetry = telemetry
        self._max_samples = max_samples

    def collect(self) -> Iterator[Metric]:
        """All families as they are now, each once."""
        return (family for family in self.in_turns() if family is not None)

    def in_turns(self) -> Iterator[Metric | None]:
        """The same, and None between parts of what instances show: one may have tens of thousands of samples. Called for every scrape."""
        own: set[str] = set()
        for collector in self._host.collectors():
            # What endpick's own show is much, and needs no look.
            is_own = type(collector).__module__.startswith("endpick.")
            families = iter(collector.collect()) if is_own else _copied(parts_of(collector), {}, self._max_samples)
            for shown_first in _unless_it_fails(families, self._failed):
                if shown_first is not None:
                    own.add(shown_first.name)
                yield shown_first
        told: dict[str, Metric] = {}
        for instance in self._instances():
            for family in self._families(instance):
                if family is None:
                    yield None
                elif family.name in own:
                    self._telemetry.fault(instance, ExtensionPoint.METRICS, f"offers the metric '{family.name}', which is endpick's own")
                elif (first := told.setdefault(family.name, family)) is not family:
                    self._join(first, family, instance)
        yield from told.values()

    def _families(self, instance: Instance) -> Iterator[Metric | None]:
        """All of an instance, or none where it fails; first None for each turn that others may have."""
        if instance.registry is None:
            return
        registry = instance.registry
        families = registry.in_parts() if isinstance(registry, RegistryInParts) else registry.collect()
        failed = partial(self._telemetry.fault, instance, ExtensionPoint.METRICS)
        labels = {"plugin_name": instance.name, "plugin_type": instance.type}
        copied = _copied(families, labels, self._max_samples)
        yield from _unless_it_fails(_timed(copied, partial(self._step_took, instance)), failed)

    def _step_took(self, instance: Instance, seconds: float) -> None:
        """No circuit opens for it: what the instance adds to decisions is no slower for its metrics."""
        if seconds > instance.breaker.budget_seconds:
            self._telemetry.late(instance, ExtensionPoint.METRICS, seconds)

    def _join(self, first: Metric, family: Metric, instance: Instance) -> None:
        if first.type == family.type:
            first.samples.extend(family.samples)
        else:
            problem = f"offers the metric '{family.name}' as a {family.type}, while another instance offers a {first.type}"
            self._telemetry.fault(instance, ExtensionPoint.METRICS, problem)


_NO_MORE: Final = Metric("none", "", "unknown")


def _unless_it_fails(families: Iterator[Metric | None], failed: Callable[[BaseException], None]) -> Iterator[Metric | None]:
    """All of them, or none where they fail; first None for each turn that others may have."""
    found: list[Metric] = []
    copied = 0
    while True:
        try:
            with apart():
                family = next(families, _NO_MORE)
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            failed(problem)
            return
        if family is _NO_MORE:
            break
        if family is not None:
            found.append(family)
            copied += len(family.samples)
        if family is None or copied > _SAMPLES_AT_ONCE:
            copied = 0
            yield None
    yield from found


def _timed(families: Iterator[Metric | None], took: Callable[[float], None]) -> Iterator[Metric | None]:
    """All of them, telling how long each step held the event loop; the first of a collector that builds all at once is its whole work."""
    while True:
        began = perf_counter()
        try:
            family = next(families, _NO_MORE)
        finally:
            took(perf_counter() - began)
        if family is _NO_MORE:
            return
        yield family


def _copied(families: Iterable[Metric | Family], labels: Mapping[str, str], most: int) -> Iterator[Metric | None]:
    """Copies of families, each sample with these labels; None now and then, for a turn.

    Raises:
        ValueError: together they have more samples than `most`, or what they have would make the page unreadable.
    """
    left = most
    for family in families:
        copy = yield from _copy_of(family, islice(family.samples, left + 1), labels)
        left -= len(copy.samples)
        if left < 0:
            raise ValueError(f"offers more than {most} samples: find the label that has too many values, or see --metrics-max-samples")
        yield copy


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
"""Of metrics and labels; one other makes the whole page unreadable."""


def _plain(text: object) -> str:
    """A text of Python's own: one of a class of its own runs code of the plugin when it is compared, and when the page is written."""
    return str.__str__(str(text))


def _copy_of(family: Metric | Family, samples: Iterable[Sample], added: Mapping[str, str]) -> Generator[None, None, Metric]:
    """A copy, because a plugin may give the same object again; with texts and numbers only, so that writing the page cannot fail.

    Yields after each `_SAMPLES_AT_ONCE`, for a turn.
    """
    name, documentation, kind = (_plain(text) for text in (family.name, family.documentation, family.type))
    copy = Metric(name, documentation, kind)
    for number, sample in enumerate(samples, start=1):
        if not number % _SAMPLES_AT_ONCE:
            yield
        if not all(map(_NAME.fullmatch, (name, sample.name, *sample.labels))):
            raise ValueError(f"a metric, a sample or a label of {shown(name)} has a name that no scraper reads")
        labels = {_plain(label): _plain(text) for label, text in sample.labels.items()}
        value = float(sample.value)
        copy.add_sample(_plain(sample.name), {**labels, **added}, value)
    return copy


class EventCounts(Collector):
    """One counter family with the label `event`, read at scrape time."""

    def __init__(self, name: str, documentation: str, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` gives the current count of each event; counts never decrease."""
        self._name = name
        self._documentation = documentation
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The family as it is now; called by the registry."""
        family = CounterMetricFamily(self._name, self._documentation, labels=["event"])
        for event, count in self._read().items():
            family.add_metric([event], count)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The family without samples, so that registering does not read."""
        yield CounterMetricFamily(self._name, self._documentation, labels=["event"])


_AVERAGED = (
    ("kv_cache_utilization", KV_CACHE_USAGE.name, "KV cache usage"),
    ("queue_size", WAITING_QUEUE_SIZE.name, "waiting queue"),
    ("running_requests", RUNNING_REQUESTS_SIZE.name, "running requests"),
)


class PoolGauges(Collector):
    """llm-d's pool gauges, and the age of each column."""

    def __init__(
        self, pool_name: str, generation: Callable[[], Generation], clock: Callable[[], float], staleness_seconds: float = math.inf
    ) -> None:
        """`generation` gives the table as it is now, `clock` monotonic seconds; averages leave out values older than that."""
        self._pool_name = pool_name
        self._generation = generation
        self._clock = clock
        self._staleness_seconds = staleness_seconds

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: the families are known only at scrape time."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges as they are now; called by the registry."""
        generation = self._generation()
        yield self._pool("ready_endpoints", "Endpoints in the pool.", len(generation.endpoints))
        for name, key, text in _AVERAGED:
            reported = _reported(generation, key, self._clock() - self._staleness_seconds)
            if len(reported):
                yield self._pool(f"average_{name}", f"Mean {text} over the endpoints that reported it.", float(reported.mean()))
                yield self._pool(f"std_dev_{name}", f"Standard deviation of the {text}.", _deviation(reported))
        yield self._queues(generation)
        yield self._ages(generation)

    def _pool(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["name"])
        family.add_metric([self._pool_name], value)
        return family

    def _queues(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"{PREFIX}per_endpoint_queue_size", "Waiting queue of each endpoint.", labels=["name", "model_server_endpoint"]
        )
        column = generation.columns.get(WAITING_QUEUE_SIZE.name)
        if column is not None:
            # llm-d leaves the namespace out; two endpoints that differ in nothing else would make the page unreadable.
            names = Counter(endpoint.name.rpartition("/")[2] for endpoint in generation.endpoints)
            for endpoint, size in zip(generation.endpoints, column.values.tolist(), strict=True):
                if not np.isnan(size):
                    short = endpoint.name.rpartition("/")[2]
                    family.add_metric([self._pool_name, short if names[short] == 1 else endpoint.name], size)
        return family

    def _ages(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "endpick_data_age_seconds",
            "Age of the oldest value of a data key, or of the one of the pool; +Inf while an endpoint has none.",
            labels=["key"],
        )
        now = self._clock()
        for key, written_at in generation.pool_written_at.items():
            family.add_metric([key], now - written_at)
        if generation.endpoints:
            for key, column in generation.columns.items():
                family.add_metric([key], now - float(column.written_at.min()))
        return family


def _deviation(values: FloatArray) -> float:
    """Of a sample, as llm-d takes it; 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _reported(generation: Generation, key: str, since: float) -> FloatArray:
    """The values of a column that were written no earlier than `since`."""
    column = generation.columns.get(key)
    if column is None:
        return np.empty(0)
    values: FloatArray = column.values  # type: ignore[assignment]
    return values[~np.isnan(values) & (column.written_at >= since)]
