"""What the double of an instance counts in another process: it grows there, is told here, and `/metrics` shows the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

_ADDITIVE = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
"""Samples of which two processes have a sum that means something, by the type of their family."""
_MOST_TOLD = 500
_MOST_KEPT = 2000


class SampleKey(NamedTuple):
    """One sample of a metric."""

    family: str
    type: str
    documentation: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    """Sorted."""


class Growth:
    """How much the metrics of a registry have grown since it was asked last: what the other process tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._told: dict[SampleKey, float] = {}

    def since_told(self) -> dict[SampleKey, float]:
        """What has grown, and by how much; what is too much for once comes the next time."""
        grown: dict[SampleKey, float] = {}
        for family in self._registry.collect():
            endings = _ADDITIVE.get(family.type, ())
            for sample in family.samples:
                if not sample.name.endswith(endings) or len(grown) >= _MOST_TOLD:
                    continue
                labels = tuple(sorted((name, str(value)) for name, value in sample.labels.items()))
                key = SampleKey(family.name, family.type, str(family.documentation), sample.name, labels)
                more = float(sample.value) - self._told.get(key, 0.0)
                if more > 0 or key not in self._told:
                    grown[key] = more
                    self._told[key] = float(sample.value)
        return grown


class GrownMetrics:
    """The sum of what was told: what `/metrics` adds to an instance's own samples."""

    def __init__(self) -> None:
        self.values: dict[SampleKey, float] = {}

    def add(self, key: SampleKey, more: float) -> None:
        """Count more of one sample. Beyond two thousand different ones, new ones are not kept: a page has to end somewhere."""
        if key in self.values or len(self.values) < _MOST_KEPT:
            self.values[key] = self.values.get(key, 0.0) + more
