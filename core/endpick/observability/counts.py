"""Plain counters of other parts, shown to Prometheus when it asks and at no cost until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


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
