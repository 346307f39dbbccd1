"""Compares the matches that a prefix index predicts with the cached tokens that servers report.

The index predicts that the endpoint holds `matched` of the prompt's `total` blocks. Servers count tokens, so shares are compared:

    promised = matched / total                       reported = min(1, cached tokens / prompt tokens + 1 / total)
    agreement = min(1, reported / promised)          factor = factor + 0.05 * (agreement - factor), from 0.25 to 1
    drift = drift + 0.05 * ((promised - nearest) / max(promised, nearest) - drift)

Servers always compute the last block, so it is added; `nearest` is the report closest to the promise, with or without it. Matches are
multiplied by the factor. A promise is broken if less than half was kept and at least two blocks are missing; the index then drops blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, TypeAlias

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import Field

from endpick.api import Endpoint, FloatArray, Usage

SELF_CHECK: TypeAlias = Annotated[
    bool,
    Field(description="Compare matches with the cached tokens that servers report: calibrate matches, and drop disproved blocks."),
]

LOWEST_FACTOR = 0.25
UNRELIABLE = 0.5  # endpoints below do not keep the prompts they just computed
_STEP = 0.05
_KEPT = 0.5
_BLOCKS_MISSING = 2
_LABELS = ("endpoint_name",)


class Finding(Enum):
    """The result of comparing a predicted match with the server's report."""

    KEPT = auto()
    BROKEN = auto()  # the prompt was evicted, or the server restarted
    BROKEN_AGAIN = auto()  # by an unreliable endpoint


@dataclass(frozen=True, slots=True)
class Promise:
    """The predicted match of one request."""

    endpoint: Endpoint
    matched: float
    total: int

    def found_blocks(self, usage: Usage) -> int:
        return min(self.total, int(self.total * (usage.cached_tokens or 0) / max(usage.prompt_tokens, 1)))


@dataclass(slots=True)
class _Record:
    factor: float = 1.0
    drift: float = 0.0
    checks: int = 0
    broken: int = 0
    purged: int = 0


class _Records(Collector):
    def __init__(self, records: Mapping[str, _Record]) -> None:
        self._records = records

    def collect(self) -> Iterator[Metric]:
        checks = CounterMetricFamily("endpick_prefix_checks", "Matches compared with a server's report.", labels=_LABELS)
        broken = CounterMetricFamily("endpick_prefix_broken_promises", "Matches less than half confirmed.", labels=_LABELS)
        purged = CounterMetricFamily("endpick_prefix_purged_blocks", "Blocks dropped because they were disproved.", labels=_LABELS)
        text = "Smoothed share by which the index overestimates (above 0) or underestimates (below 0) the server's cache."
        drift = GaugeMetricFamily("endpick_prefix_drift", text, labels=_LABELS)
        factor = GaugeMetricFamily("endpick_prefix_calibration", "Factor applied to matches.", labels=_LABELS)
        for name, record in self._records.items():
            label = (name.rpartition("/")[2],)
            checks.add_metric(label, record.checks)
            broken.add_metric(label, record.broken)
            purged.add_metric(label, record.purged)
            drift.add_metric(label, record.drift)
            factor.add_metric(label, record.factor)
        yield from (checks, broken, purged, drift, factor)


class SelfCheck:
    """Compares predictions with reports, and keeps a record for each endpoint."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._records: dict[str, _Record] = {}
        self._factors: tuple[object, FloatArray] = (None, np.ones(0))
        if registry is not None:
            registry.register(_Records(self._records))

    def factors(self, members: Sequence[Endpoint]) -> FloatArray:
        known, factors = self._factors
        if known is not members:
            factors = np.array([self._records[member.name].factor if member.name in self._records else 1.0 for member in members])
            self._factors = members, factors
        return factors

    def judge(self, promise: Promise, usage: Usage | None) -> Finding:
        if usage is None or usage.cached_tokens is None or usage.prompt_tokens <= 0 or not promise.total:
            return Finding.KEPT
        promised = min(promise.matched / promise.total, 1.0)
        cached = min(max(usage.cached_tokens, 0) / usage.prompt_tokens, 1.0)
        reported = min(1.0, cached + 1 / promise.total)
        if promised <= 0 and not cached:
            return Finding.KEPT
        record = self._records.setdefault(promise.endpoint.name, _Record())
        record.checks += 1
        if promised > 0:
            record.factor += _STEP * (min(1.0, reported / promised) - record.factor)
            record.factor = min(max(record.factor, LOWEST_FACTOR), 1.0)
            self._factors = (None, self._factors[1])
        nearest = reported if reported < promised else max(promised, cached)
        record.drift += _STEP * ((promised - nearest) / max(promised, nearest) - record.drift)
        missing = promise.matched - promise.total * cached
        if cached >= promised * _KEPT or missing < _BLOCKS_MISSING:
            return Finding.KEPT
        record.broken += 1
        return Finding.BROKEN_AGAIN if record.factor < UNRELIABLE else Finding.BROKEN

    def purged(self, endpoint: Endpoint, blocks: int) -> None:
        record = self._records.get(endpoint.name)
        if record is not None:
            record.purged += blocks

    def forget(self, name: str) -> None:
        self._records.pop(name, None)
        self._factors = (None, self._factors[1])
