"""Holds what a prefix index promised against what the server then reported, and says what to do about the difference.

A request was sent to an endpoint because the index says that it holds `matched` of the prompt's `total` blocks. The server reports of
how many prompt tokens it found how many in its cache, in its own count of tokens; shares of the prompt are what can be compared:

    promised = matched / total                       reported = min(1, cached tokens / prompt tokens + 1 / total)
    agreement = min(1, reported / promised)          factor = factor + 0.05 * (agreement - factor), from 0.25 to 1
    drift = drift + 0.05 * ((promised - nearest) / max(promised, nearest) - drift)

One block is allowed for what servers compute in any case; `nearest` is what lies nearest to the promise between the report with that block
and the one without. Matches of the endpoint are multiplied by its factor, which moves slowly: ten
failures in a row take it from 1 to 0.7. Where less than half of the promise was kept, and at least two blocks are missing, the index was
wrong, and what it believed for the same reason has to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Field(
        alias="selfCheck",
        description="Compare each promise with the cached tokens that the server reports: calibrate matches, and purge what proved false.",
    ),
]

_STEP = 0.05
LOWEST_FACTOR = 0.25
_KEPT = 0.5
_BLOCKS_MISSING = 2
UNRELIABLE = 0.5
"""Below this factor an endpoint keeps breaking promises: it does not even keep what it computed last."""


class Finding(Enum):
    """What a comparison came to."""

    KEPT = auto()
    BROKEN = auto()
    """The prompt had been evicted, or the server was restarted."""
    BROKEN_AGAIN = auto()
    """As `BROKEN`, by an endpoint with a habit of it."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the index said of the endpoint that a request was sent to."""

    endpoint: Endpoint
    matched: float
    total: int

    def found_blocks(self, usage: Usage) -> int:
        """How many of the prompt's blocks the server had, by its own account."""
        return min(self.total, int(self.total * (usage.cached_tokens or 0) / max(usage.prompt_tokens, 1)))


@dataclass(slots=True)
class _Record:
    factor: float = 1.0
    drift: float = 0.0
    checks: int = 0
    broken: int = 0
    purged: int = 0


_DRIFT = "Smoothed share by which the index promised more (above 0) or less (below 0) than the server found."
_Family: TypeAlias = tuple[str, str, Callable[[_Record], float]]
_COUNTS: tuple[_Family, ...] = (
    ("endpick_prefix_checks", "Promises compared with the server's report.", lambda record: record.checks),
    ("endpick_prefix_broken_promises", "Promises not kept by half.", lambda record: record.broken),
    ("endpick_prefix_purged_blocks", "Blocks dropped because they proved false.", lambda record: record.purged),
)
_LEVELS: tuple[_Family, ...] = (
    ("endpick_prefix_drift", _DRIFT, lambda record: record.drift),
    ("endpick_prefix_calibration", "What matches are multiplied by.", lambda record: record.factor),
)
_LABELS = ("endpoint_name",)


class _Records(Collector):
    """The metrics of the endpoints that have a record, read when Prometheus asks: they cost requests nothing."""

    def __init__(self, records: Mapping[str, _Record]) -> None:
        self._records = records

    def collect(self) -> Iterator[Metric]:
        """A family for each field."""
        families: list[tuple[CounterMetricFamily | GaugeMetricFamily, Callable[[_Record], float]]] = []
        families += [(CounterMetricFamily(name, text, labels=_LABELS), read) for name, text, read in _COUNTS]
        families += [(GaugeMetricFamily(name, text, labels=_LABELS), read) for name, text, read in _LEVELS]
        for family, read in families:
            for name, record in self._records.items():
                family.add_metric((name.rpartition("/")[2],), read(record))
            yield family


class SelfCheck:
    """Keeps the record of each endpoint."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._records: dict[str, _Record] = {}
        self._factors: tuple[object, FloatArray] = (None, np.ones(0))
        if registry is not None:
            registry.register(_Records(self._records))

    def factors(self, members: Sequence[Endpoint]) -> FloatArray:
        """What to multiply matches by, shape `(len(members),)`, for the endpoints of a pool: the same sequence until one changes."""
        known, factors = self._factors
        if known is not members:
            factors = np.array([self._records[one.name].factor if one.name in self._records else 1.0 for one in members])
            self._factors = members, factors
        return factors

    def judge(self, promise: Promise, usage: Usage | None) -> Finding:
        """Compare; without effect where the server reports no cached tokens, or nothing was promised and nothing found."""
        if usage is None or usage.cached_tokens is None or usage.prompt_tokens <= 0 or not promise.total:
            return Finding.KEPT
        promised = min(promise.matched / promise.total, 1.0)
        cached = min(max(usage.cached_tokens, 0) / usage.prompt_tokens, 1.0)
        reported = min(1.0, cached + 1 / promise.total)
        if promised <= 0 and not cached:
            return Finding.KEPT
        record = self._records.get(promise.endpoint.name)
        if record is None:
            record = self._records[promise.endpoint.name] = _Record()
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
        """So many blocks were dropped."""
        record = self._records.get(endpoint.name)
        if record is not None:
            record.purged += blocks

    def forget(self, name: str) -> None:
        """The endpoint has left; one that takes its name starts with a clean record."""
        self._records.pop(name, None)
        self._factors = (None, self._factors[1])
