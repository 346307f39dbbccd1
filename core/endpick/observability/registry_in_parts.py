"""A registry whose collectors are asked one by one, and read in parts, however many labels a plugin tells apart.

To read all samples of a counter at once takes prometheus-client some 3 to 7 µs for each of them, so that a label of ten thousand values
would hold the event loop for a tenth of a second at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics import MetricWrapperBase
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

    def collectors(self) -> Iterator[Iterator[Metric | Family]]:
        """What `collect` gives, collector by collector; one that fails does so where what it gives is iterated over."""
        target = self.get_target_info()
        if target:
            yield iter([InfoMetricFamily("target", "Target metadata", target)])
        for collector in tuple(self._asked):
            yield _families_of(collector)

    def in_parts(self) -> Iterator[Metric | Family]:
        """The same, one after the other."""
        for families in self.collectors():
            yield from families


def _families_of(collector: Collector) -> Iterator[Metric | Family]:
    """Those of one; the samples of metrics that prometheus-client keeps are read as the caller asks for them."""
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
