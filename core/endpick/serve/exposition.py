"""The collectors behind `/metrics`: the host's registry, the registries of instances, and gauges over the pool."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.endpoints import FloatArray
from endpick.api.generation import Generation
from endpick.api.keys import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry
from endpick.serve.metrics import PREFIX

_log = logging.getLogger("endpick.serve")

MAX_SAMPLES = 20_000
"""Per instance. An instance with more has a label with unbounded values."""


def new_host_registry() -> CollectorRegistry:
    """The registry of a serving process, with the metrics of Python and the process."""
    disable_created_metrics()  # type: ignore[no-untyped-call] # llm-d has no `_created` gauges
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


class Exposition(Collector):
    """Chains the host's registry, that of hook objects, and the registries of the instances that serve now.

    Samples of instances get the labels `plugin_name` and `plugin_type`, so two instances of a type never clash, nor does an instance
    with the one it replaces at a reload. A registry that raises is left out and reported.
    """

    def __init__(
        self, host: CollectorRegistry, hooks: CollectorRegistry | None, instances: Callable[[], Iterable[Instance]], telemetry: Telemetry
    ) -> None:
        """Keep what each scrape needs.

        Args:
            host: The host's own metrics.
            hooks: Metrics that hook objects have registered.
            instances: Returns the instances that serve now.
            telemetry: Gets the faults of their metrics.
        """
        self._host = host
        self._hooks = hooks
        self._instances = instances
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        """All families, each once."""
        families: dict[str, Metric] = {}
        for family in self._host.collect():
            _join(families, family)
        own = set(families)
        self._add_hooks(families, own)
        for instance in self._instances():
            self._add_instance(families, own, instance)
        yield from families.values()

    def _add_hooks(self, families: dict[str, Metric], own: set[str]) -> None:
        if self._hooks is None:
            return
        try:
            offered = list(self._hooks.collect())
        except PLUGIN_ERRORS as error:
            _log.error("metrics of hook objects are left out: %s", describe_error(error), exc_info=error)
            return
        for family in offered:
            if family.name not in own:
                _join(families, family)

    def _add_instance(self, families: dict[str, Metric], own: set[str], instance: Instance) -> None:
        if instance.registry is None:
            return
        try:
            copies = [_labelled(family, instance) for family in instance.registry.collect()]
        except PLUGIN_ERRORS as error:
            self._telemetry.fault(instance, ExtensionPoint.METRICS, error)
            return
        if sum(len(copy.samples) for copy in copies) > MAX_SAMPLES:
            problem = f"offers more than {MAX_SAMPLES} samples: find the label with too many values"
            self._telemetry.fault(instance, ExtensionPoint.METRICS, problem)
            return
        for copy in copies:
            if copy.name in own:
                problem = f"offers the metric '{copy.name}', which is endpick's own"
                self._telemetry.fault(instance, ExtensionPoint.METRICS, problem)
            elif not _join(families, copy):
                first = families[copy.name].type
                problem = f"offers the metric '{copy.name}' as a {copy.type}, while another instance offers a {first}"
                self._telemetry.fault(instance, ExtensionPoint.METRICS, problem)


def _join(families: dict[str, Metric], family: Metric) -> bool:
    """Add a family, or its samples to the one of the same name; False if their types differ."""
    first = families.setdefault(family.name, family)
    if first is not family and first.type == family.type:
        first.samples.extend(family.samples)
    return first.type == family.type


def _labelled(family: Metric, instance: Instance) -> Metric:
    """A copy, because a collector may return the same object at each scrape."""
    labels = {"plugin_name": instance.name, "plugin_type": instance.type}
    copy = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        copy.add_sample(sample.name, {**sample.labels, **labels}, float(sample.value))
    return copy


class EventCounts(Collector):
    """One counter family with the label `event`, read at scrape time."""

    def __init__(self, name: str, documentation: str, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` returns the count of each event."""
        self._name = name
        self._documentation = documentation
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The family as it is now."""
        family = CounterMetricFamily(self._name, self._documentation, labels=["event"])
        for event, count in self._read().items():
            family.add_metric([event], count)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The family without samples."""
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
        """`generation` returns the table as it is now. Averages leave out values older than `staleness_seconds`."""
        self._pool_name = pool_name
        self._generation = generation
        self._clock = clock
        self._staleness_seconds = staleness_seconds

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: the families depend on the pool."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges as they are now."""
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
            # llm-d drops the namespace. Keep it for endpoints that would otherwise have the same labels.
            names = Counter(endpoint.name.rpartition("/")[2] for endpoint in generation.endpoints)
            for endpoint, size in zip(generation.endpoints, column.values.tolist(), strict=True):
                if not np.isnan(size):
                    short = endpoint.name.rpartition("/")[2]
                    family.add_metric([self._pool_name, short if names[short] == 1 else endpoint.name], size)
        return family

    def _ages(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "endpick_data_age_seconds",
            "Age of the oldest value of a data key; +Inf while an endpoint has none.",
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
    """Sample standard deviation, as in llm-d; 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _reported(generation: Generation, key: str, since: float) -> FloatArray:
    column = generation.columns.get(key)
    if column is None:
        return np.empty(0)
    values: FloatArray = column.values  # type: ignore[assignment]
    return values[~np.isnan(values) & (column.written_at >= since)]
