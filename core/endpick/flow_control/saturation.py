"""The saturation of the pool, by role; cached while its inputs do not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.generation import Generation
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS
from endpick.flow_control.policies import checked_saturation
from endpick.host.boundary import Step

ROLE_LABEL = "llm-d.ai/role"
PREFILL_ROLES = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
DECODE_ROLES = frozenset({None, "", "decode", "prefill-decode", "both", "encode-prefill-decode"})
"""`encode`, and values unknown to llm-d, count for neither stage."""
FRESH_SECONDS = 0.01
"""Maximum age of a reading: data get stale without changing."""
_COUNTED_HERE = frozenset({INFLIGHT_REQUESTS.name, INFLIGHT_TOKENS.name})


class Pool(Protocol):
    """The endpoint table."""

    @property
    def generation(self) -> Generation:
        """The endpoints and their columns."""

    def view(self, access: Access) -> Endpoints:
        """Every endpoint of the pool."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The saturation of the pool, 1 for full; `effective` is that of the fuller stage, or of the pool without roles."""

    effective: float
    prefill: float | None
    decode: float | None
    is_empty: bool


_EMPTY = Reading(1.0, None, None, is_empty=True)


class _Mark:
    """A key in `Column.derived`."""


class PoolSaturation:
    """Calls the saturation detector, and caches its answer."""

    def __init__(self, detector: Step, pool: Pool, access: Access, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._detector = detector
        self._pool = pool
        self._access = access
        self._clock = clock
        self._mark = _Mark()
        self._reading = _EMPTY
        self._generation: Generation | None = None
        self._read_at = 0.0
        self._marked: tuple[dict[object, object], ...] = ()
        """`Column.derived` of the detector's columns; emptied, with our mark, when a value changes."""
        self._members: tuple[Endpoint, ...] = ()
        self._stages: tuple[BoolArray, BoolArray] = _stages_of(())
        declared = detector.instance.subscriptions
        names = [key.name for key in (*declared.consumes, *declared.consumes_optional)]
        self._columns = {*names, *(name.partition("@")[0] for name in names)}
        self.is_counted_here = bool(names) and all(name.partition("@")[0] in _COUNTED_HERE for name in names)
        """True if the detector reads only counts of this process, so that it sees the end of a request at once."""

    def read(self) -> Reading:
        """The current saturation; called for every request."""
        generation = self._pool.generation
        if generation is self._generation:
            if self._reading.is_empty:
                return self._reading
            if self._marked and self._clock() - self._read_at < FRESH_SECONDS and self._is_marked():
                return self._reading
        self._generation = generation
        if not generation.endpoints:
            self._reading, self._marked = _EMPTY, ()
            return _EMPTY
        self._reading = self._measure(generation.endpoints)
        self._read_at = self._clock()
        self._marked = tuple([column.derived for name, column in generation.columns.items() if name in self._columns])
        for derived in self._marked:
            derived[self._mark] = None
        return self._reading

    def has_changed(self) -> bool:
        """True if inputs of the last reading have changed; False for a detector without columns."""
        return self._pool.generation is not self._generation or not self._is_marked()

    def _is_marked(self) -> bool:
        return all(self._mark in derived for derived in self._marked)

    def _measure(self, members: tuple[Endpoint, ...]) -> Reading:
        if members is not self._members:
            self._members, self._stages = members, _stages_of(members)
        endpoints = self._pool.view(self._access)
        prefill, decode = [self._asked(endpoints.where(stage)) if stage.any() else None for stage in self._stages]
        if prefill is None and decode is None:
            return Reading(self._asked(endpoints), None, None, is_empty=False)
        return Reading(max(prefill or 0.0, decode or 0.0), prefill, decode, is_empty=False)

    def _asked(self, endpoints: Endpoints) -> float:
        return checked_saturation(self._detector, self._detector.run(self._access, endpoints))


def _stages_of(members: tuple[Endpoint, ...]) -> tuple[BoolArray, BoolArray]:
    """The masks of the endpoints that prefill and that decode."""
    roles = [member.labels.get(ROLE_LABEL) for member in members]
    return np.array([role in PREFILL_ROLES for role in roles], np.bool_), np.array([role in DECODE_ROLES for role in roles], np.bool_)
