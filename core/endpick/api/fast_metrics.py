"""Counters, gauges and histograms for the request path; not thread-safe.

An observation costs 0.15 µs, against 0.9 µs in `prometheus_client`. Make a metric in the constructor with `self.context.registry`, and keep
its members.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from time import time
from typing import Generic, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

_LONGEST_ID = 100  # OpenMetrics allows 128 characters for an exemplar's labels


class Tally:
    """The value of one counter or gauge, for one combination of label values.

    `value` is a float, and may be set.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self) -> None:
        """Add one to the value of the counter or gauge."""
        self.value += 1.0


class Distribution:
    """The bucket counts and the sum of a histogram, for one combination of label values."""

    __slots__ = ("_first", "bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Make empty buckets. `bounds` ascend and are inclusive; a bucket without bound is added."""
        self.bounds = bounds
        self._first = bounds[0] if bounds else -math.inf
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, tuple[str, float, float]] | None = None  # by bucket the latest request id, value and Unix time

    def observe(self, value: float) -> None:
        """Count one value in its bucket, and add it to the sum."""
        # Nearly all calls of plugins are in the first bucket.
        self.counts[0 if value <= self._first else bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_request(self, value: float, request_id: str) -> None:
        """Count one value, and keep the request as the exemplar of its bucket.

        An id that is longer than 100 characters, or has other characters than ASCII letters, digits and dashes, is counted without an
        exemplar: clients choose ids.
        """
        position = bisect_left(self.bounds, value)
        self.counts[position] += 1
        self.total += value
        if len(request_id) <= _LONGEST_ID and request_id.isascii() and request_id.replace("-", "").isalnum():
            if self.exemplars is None:
                self.exemplars = {}
            self.exemplars[position] = request_id, value, time()

    def merge(self, other: Distribution) -> None:
        """Add the counts and the sum of a distribution with the same bounds."""
        for position, count in enumerate(other.counts):
            self.counts[position] += count
        self.total += other.total


Member = TypeVar("Member")
Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily)


class _Labelled(Collector, Generic[Member, Family]):
    """One metric, with a member for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry | None) -> None:
        """Make the metric, and register it unless `registry` is None.

        Raises ValueError if the name is taken.
        """
        self._name = name
        self._documentation = documentation
        self._label_names = tuple(labels)
        self._members: dict[tuple[str, ...], Member] = {}
        if registry is not None:
            registry.register(self)

    def labels(self, *values: str) -> Member:
        """Return the member for these label values, in the order of the metric's labels.

        Keep it: the look-up costs more than counting. Raises ValueError for another number of values.
        """
        if len(values) != len(self._label_names):
            raise ValueError(f"{self._name} has the labels {self._label_names}, not {len(values)} of them")
        member = self._members.get(values)
        if member is None:
            member = self._members[values] = self._new_member()
        return member

    def members(self) -> Mapping[tuple[str, ...], Member]:
        """Return the members by their label values. The mapping shows later members, too."""
        return self._members

    def describe(self) -> Iterator[Family]:
        """Describe the metric to `prometheus_client`, which calls it when the metric is registered."""
        yield self._family(self._name, self._documentation, labels=self._label_names)

    def collect(self) -> Iterator[Family]:
        """Return the samples of all members; `prometheus_client` calls it for each scrape."""
        family = self._family(self._name, self._documentation, labels=self._label_names)
        for values, member in tuple(self._members.items()):  # read in a thread, while requests add members
            if self._is_shown(member):
                self._sample(family, values, member)
        yield family

    def _is_shown(self, member: Member) -> bool:
        return True

    @abstractmethod
    def _new_member(self) -> Member: ...

    @abstractmethod
    def _sample(self, family: Family, values: tuple[str, ...], member: Member) -> None: ...

    _family: type[Family]


class Counts(_Labelled[Tally, CounterMetricFamily]):
    """A counter with labels. `labels(...)` returns a `Tally`; add to it with `inc` or `value`."""

    _family = CounterMetricFamily

    def _new_member(self) -> Tally:
        return Tally()

    def _sample(self, family: CounterMetricFamily, values: tuple[str, ...], member: Tally) -> None:
        family.add_metric(values, member.value)


class Levels(_Labelled[Tally, GaugeMetricFamily]):
    """A gauge with labels. `labels(...)` returns a `Tally`; set its `value`."""

    _family = GaugeMetricFamily

    def _new_member(self) -> Tally:
        return Tally()

    def _sample(self, family: GaugeMetricFamily, values: tuple[str, ...], member: Tally) -> None:
        family.add_metric(values, member.value)


class Distributions(_Labelled[Distribution, HistogramMetricFamily]):
    """A histogram with labels. `labels(...)` returns a `Distribution`; count with `observe`.

    With labels, combinations without a value are left out of the page.
    """

    _family = HistogramMetricFamily

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry | None
    ) -> None:
        """Make the metric, and register it unless `registry` is None.

        `bounds` ascend; a bucket +Inf is added. Raises ValueError if the name is taken.
        """
        self._bounds = tuple(map(float, bounds))
        self._written = (*map(floatToGoString, self._bounds), "+Inf")
        super().__init__(name, documentation, labels, registry)

    def _is_shown(self, member: Distribution) -> bool:
        return not self._label_names or any(member.counts)

    def _new_member(self) -> Distribution:
        return Distribution(self._bounds)

    def _sample(self, family: HistogramMetricFamily, values: tuple[str, ...], member: Distribution) -> None:
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(zip(self._written, accumulate(member.counts), strict=True))
        for position, (request_id, value, at) in tuple((member.exemplars or {}).items()):
            bound, count = buckets[position][:2]
            buckets[position] = bound, count, Exemplar({"request_id": request_id}, value, at)
        family.add_metric(values, buckets, member.total)
