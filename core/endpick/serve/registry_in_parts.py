"""A registry whose collectors are asked one by one, and read in parts, however many labels a plugin tells apart.

To read all samples of a counter at once takes prometheus-client some 3 to 7 µs for each of them, so that a label of ten thousand values
would hold the event loop for a tenth of a second at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.metrics import MetricWrapperBase, disable_created_metrics
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Family:
    """A `Metric` whose samples are read as they are asked for; once."""

    name: str
    documentation: str
    type: str
    samples: Iterable[Sample]


class RegistryInParts(CollectorRegistry):
    """A registry that remembers its collectors, to ask each of them by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[Collector, None] = {}

    def register(self, collector: Collector) -> None:
        """See `CollectorRegistry.register`."""
        super().register(collector)
        self._asked[collector] = None

    def unregister(self, collector: Collector) -> None:
        """See `CollectorRegistry.unregister`."""
        super().unregister(collector)
        self._asked.pop(collector, None)

    def collectors(self) -> Iterator[Collector]:
        """Those that `collect` asks, in its order."""
        target = self.get_target_info()
        if target:
            yield _Target(target)
        yield from tuple(self._asked)

    def in_parts(self) -> Iterator[Metric | Family]:
        """What `collect` gives; see `parts_of`."""
        for collector in self.collectors():
            yield from parts_of(collector)


@dataclass(frozen=True, slots=True)
class _Target(Collector):
    """What a registry says of its process as a whole."""

    labels: dict[str, str]

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("target", "Target metadata", self.labels)


def parts_of(collector: Collector) -> Iterator[Metric | Family]:
    """What a collector gives; the samples of metrics that prometheus-client keeps are read as the caller asks for them.

    Raises:
        BaseException: whatever a collector of a plugin's own raises, where the caller asks for the next family or sample.
    """
    # A class of the plugin's own may collect in its own way.
    if isinstance(collector, MetricWrapperBase) and type(collector).collect is MetricWrapperBase.collect:
        for described in collector.describe():
            yield Family(described.name, described.documentation, described.type, _samples_of(collector, described.name))
    else:
        yield from collector.collect()


def _samples_of(collector: MetricWrapperBase, name: str) -> Iterator[Sample]:
    """Those of one combination of labels after the other, each as it is then; `collect` has no other way to them either."""
    for sample in collector._samples():
        yield Sample(name + sample.name, sample.labels, sample.value)


def new_host_registry() -> RegistryInParts:
    """That of a serving process, with what it tells of itself, its Python and its garbage collections."""
    # llm-d has no such gauges, and they double the counters of a page.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = RegistryInParts()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry
