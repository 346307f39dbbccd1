"""How full the pool is: by roles, and worked out again only when something has changed on which it depends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.generation import Generation
from endpick.flow_control.calls import Detector

ROLE_LABEL = "llm-d.ai/role"
PREFILL_ROLES = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
DECODE_ROLES = frozenset({None, "", "decode", "prefill-decode", "both", "encode-prefill-decode"})
"""An endpoint without the label decodes. `encode`, and values that llm-d does not know, count for neither stage."""
FRESH_SECONDS = 0.01
"""A value is worked out again after this long in any case: data get old without changing."""


class Pool(Protocol):
    """What is needed of the endpoint table."""

    @property
    def generation(self) -> Generation:
        """The endpoints and their columns as they are now."""

    def view(self, access: Access) -> Endpoints:
        """Every endpoint of the pool."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How full the pool was.

    Attributes:
        effective: The fuller of the stages; of the whole pool where no endpoint has a role of either.
        prefill: Of the endpoints that prefill; None where there are none.
        decode: Of those that decode; None as for `prefill`.
        is_empty: Whether the pool had no endpoints at all.
    """

    effective: float
    prefill: float | None
    decode: float | None
    is_empty: bool


_EMPTY = Reading(1.0, None, None, True)


class _Mark:
    """The key under which a reading leaves a mark with the columns on which it depends: see `Endpoints.derived`."""


@dataclass(frozen=True, slots=True)
class _Stages:
    """Which endpoints serve which stage, for one tuple of endpoints."""

    members: tuple[Endpoint, ...]
    prefill: BoolArray
    decode: BoolArray


class PoolSaturation:
    """Asks the detector, and remembers what it said while nothing has changed."""

    __slots__ = (
        "_access",
        "_clock",
        "_derived",
        "_detector",
        "_generation",
        "_mark",
        "_pool",
        "_read_at",
        "_reading",
        "_stages",
    )

    def __init__(self, detector: Detector, pool: Pool, access: Access, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; after one that jumps back the detector is asked again."""
        self._detector = detector
        self._pool = pool
        self._access = access
        self._clock = clock
        self._mark = _Mark()
        self._reading = _EMPTY
        self._generation: Generation | None = None
        self._derived: tuple[dict[object, object], ...] = ()
        """What follows from the columns on which the reading depends; their owner empties it when a value changes, marks included."""
        self._read_at = 0.0
        self._stages: _Stages | None = None

    def read(self) -> Reading:
        """How full the pool is now. Every request asks: while nothing has changed, this calls nothing but the clock."""
        generation = self._pool.generation
        if generation is self._generation:
            if self._reading.is_empty:
                return self._reading
            if self._derived and 0.0 <= self._clock() - self._read_at < FRESH_SECONDS:
                for derived in self._derived:
                    if self._mark not in derived:
                        break
                else:
                    return self._reading
        return self._read_anew(generation)

    def has_changed(self) -> bool:
        """Whether something on which the last reading depends has changed since; False where it cannot be told."""
        if self._pool.generation is not self._generation:
            return True
        return any(self._mark not in derived for derived in self._derived)

    def _read_anew(self, generation: Generation) -> Reading:
        self._generation = generation
        if not generation.endpoints:
            self._reading, self._derived = _EMPTY, ()
            return _EMPTY
        self._reading = self._asked(self._pool.view(self._access), generation.endpoints)
        self._read_at = self._clock()
        columns = generation.columns
        self._derived = tuple([columns[name].derived for name in self._detector.consumed if name in columns])
        for derived in self._derived:
            derived[self._mark] = None
        return self._reading

    def _asked(self, endpoints: Endpoints, members: tuple[Endpoint, ...]) -> Reading:
        stages = self._stages
        if stages is None or stages.members is not members:
            stages = self._stages = _stages_of(members)
        prefill = self._of(endpoints, stages.prefill)
        decode = self._of(endpoints, stages.decode)
        if prefill is None and decode is None:
            return Reading(self._detector.saturation(endpoints), None, None, is_empty=False)
        return Reading(max(prefill or 0.0, decode or 0.0), prefill, decode, is_empty=False)

    def _of(self, endpoints: Endpoints, stage: BoolArray) -> float | None:
        return self._detector.saturation(endpoints.where(stage)) if stage.any() else None


def _stages_of(members: tuple[Endpoint, ...]) -> _Stages:
    roles = [member.labels.get(ROLE_LABEL) for member in members]
    return _Stages(
        members, np.array([role in PREFILL_ROLES for role in roles], np.bool_), np.array([role in DECODE_ROLES for role in roles], np.bool_)
    )
