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

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, TypeAlias

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge
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
    endpoint: Endpoint
    factor: float = 1.0
    drift: float = 0.0


class SelfCheck:
    """Keeps the record of each endpoint."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._records: dict[str, _Record] = {}
        self._factors: tuple[object, FloatArray] = (None, np.ones(0))
        label = ("endpoint_name",)
        self._checks = Counter("endpick_prefix_checks_total", "Promises compared with the server's report.", label, registry=registry)
        self._broken = Counter("endpick_prefix_broken_promises_total", "Promises not kept by half.", label, registry=registry)
        self._purged = Counter("endpick_prefix_purged_blocks_total", "Blocks dropped because they proved false.", label, registry=registry)
        drift = "Smoothed share by which the index promised more (above 0) or less (below 0) than the server found."
        self._drift = Gauge("endpick_prefix_drift", drift, label, registry=registry)
        self._factor = Gauge("endpick_prefix_calibration", "What matches are multiplied by.", label, registry=registry)

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
        record = self._records.setdefault(promise.endpoint.name, _Record(promise.endpoint))
        name = promise.endpoint.name.rpartition("/")[2]
        self._checks.labels(name).inc()
        if promised > 0:
            record.factor += _STEP * (min(1.0, reported / promised) - record.factor)
            record.factor = min(max(record.factor, LOWEST_FACTOR), 1.0)
            self._factors = (None, self._factors[1])
        nearest = reported if reported < promised else max(promised, cached)
        record.drift += _STEP * ((promised - nearest) / max(promised, nearest) - record.drift)
        self._factor.labels(name).set(record.factor)
        self._drift.labels(name).set(record.drift)
        missing = promise.matched - promise.total * cached
        if cached >= promised * _KEPT or missing < _BLOCKS_MISSING:
            return Finding.KEPT
        self._broken.labels(name).inc()
        return Finding.BROKEN_AGAIN if record.factor < UNRELIABLE else Finding.BROKEN

    def purged(self, endpoint: Endpoint, blocks: int) -> None:
        """So many blocks were dropped."""
        if blocks:
            self._purged.labels(endpoint.name.rpartition("/")[2]).inc(blocks)

    def forget(self, name: str) -> None:
        """The endpoint has left; one that takes its name starts with a clean record."""
        record = self._records.pop(name, None)
        self._factors = (None, self._factors[1])
        if record is not None:
            for metric in (self._checks, self._broken, self._purged, self._drift, self._factor):
                metric.remove_by_labels({"endpoint_name": name.rpartition("/")[2]})
