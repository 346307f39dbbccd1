"""The policies of flow control, their checked answers, and the saturation of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isnan
from numbers import Real
from typing import Protocol

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint, Generation
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.flow_control import SortKey
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS
from endpick.host.boundary import Fault, Step, bind, bind_wanted
from endpick.host.instance import Instance
from endpick.host.methods import CEILINGS, CHOOSE, DISPATCHED, EVICTION_SORT_KEY, FLOW_CHANGED, IS_EVICTABLE, SORT_KEY
from endpick.host.planning.plan import BandSettings, FlowControlSettings
from endpick.host.telemetry import Telemetry

_LAST: SortKey = (inf,)  # after a fault


@dataclass(frozen=True, slots=True)
class BoundFairness:
    """The bound methods of a fairness policy; None for methods that it does not override."""

    choose: Step[object]
    flow_changed: Step[object] | None
    dispatched: Step[object] | None


@dataclass(frozen=True, slots=True)
class BandRules:
    """The limits and policies of one priority band."""

    max_bytes: int
    max_requests: int
    fairness: BoundFairness
    ordering: Step[SortKey]
    ttl_seconds: float

    def orders_as(self, other: BandRules) -> bool:
        """Return True if the policies and the time limit are the same, so entries keep their order."""
        return (
            self.ttl_seconds == other.ttl_seconds
            and self.fairness.choose.instance.plugin is other.fairness.choose.instance.plugin
            and self.ordering.instance.plugin is other.ordering.instance.plugin
        )


@dataclass(frozen=True, slots=True)
class BoundEviction:
    """The bound eviction filter and eviction ordering policy."""

    is_evictable: Step[bool]
    sort_key: Step[SortKey]


@dataclass(frozen=True, slots=True)
class BoundFlowControl:
    """The rules of all bands. Unlisted priorities use `default_band`, or `negative_band` below 0."""

    settings: FlowControlSettings
    bands: Mapping[int, BandRules]
    default_band: BandRules
    negative_band: BandRules
    ceilings: Step[Sequence[float]]
    eviction: BoundEviction | None

    def of_band(self, priority: int) -> BandRules:
        """Return the rules of a priority."""
        return self.bands.get(priority) or (self.default_band if priority >= 0 else self.negative_band)


def bind_flow_control(settings: FlowControlSettings, instances: Mapping[str, Instance], telemetry: Telemetry) -> BoundFlowControl:
    """Bind the policies that the settings name. Raises TypeError for a wrong kind."""

    def band(of: BandSettings) -> BandRules:
        return BandRules(of.max_bytes, of.max_requests, fairness[of.fairness], ordering[of.ordering], settings.ttl_of(of))

    fairness = {band.fairness: _bind_fairness(instances[band.fairness], telemetry) for band in settings.all_bands}
    ordering = {band.ordering: bind(instances[band.ordering], SORT_KEY, telemetry) for band in settings.all_bands}
    return BoundFlowControl(
        settings,
        {priority: band(listed) for priority, listed in settings.bands.items()},
        band(settings.template),
        band(settings.negative_template),
        bind(instances[settings.usage_limit], CEILINGS, telemetry),
        None
        if settings.eviction is None
        else BoundEviction(
            bind(instances[settings.eviction.filter], IS_EVICTABLE, telemetry),
            bind(instances[settings.eviction.ordering], EVICTION_SORT_KEY, telemetry),
        ),
    )


def _bind_fairness(instance: Instance, telemetry: Telemetry) -> BoundFairness:
    return BoundFairness(
        bind(instance, CHOOSE, telemetry),
        bind_wanted(instance, FLOW_CHANGED, telemetry),
        bind_wanted(instance, DISPATCHED, telemetry),
    )


def checked_key(step: Step[SortKey], answer: SortKey | Fault) -> SortKey:
    """Return the sort key, or after a fault a key that sorts last."""
    if isinstance(answer, Fault):
        return _LAST
    if all(isinstance(part, Real) and part == part for part in answer):  # not NaN
        return answer
    step.fault(f"answered {answer!r:.80}, not a tuple of numbers")
    return _LAST


def checked_ceilings(step: Step[Sequence[float]], count: int, answer: Sequence[float] | Fault) -> Sequence[float]:
    """Return one ceiling per priority, descending; all 1 after a fault."""
    if isinstance(answer, Fault):
        return [1.0] * count
    if len(answer) != count or not all(isinstance(ceiling, Real) for ceiling in answer):
        step.fault(f"answered {answer!r:.80}, not {count} numbers, one for each priority")
    elif not all(after <= before for before, after in pairwise((inf, *answer))):
        step.fault(f"answered {answer!r:.80}; each ceiling must be a number not greater than the one before it")
    else:
        return answer
    return [1.0] * count


def checked_saturation(step: Step[float], answer: float | Fault) -> float:
    """Return a number of at least 0; after a fault 0, or 1 if `onFault` refuses requests."""
    if not isinstance(answer, Fault):
        if not isnan(answer):
            return max(0.0, float(answer))
        answer = step.fault("answered nan, not a number")
    return 1.0 if answer.refuses else 0.0


ROLE_LABEL = "llm-d.ai/role"
PREFILL_ROLES = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
DECODE_ROLES = frozenset({None, "", "decode", "prefill-decode", "both", "encode-prefill-decode"})
# Other roles, such as `encode`, count for neither stage.
FRESH_SECONDS = 0.01  # maximum age of a reading: values also become stale
_COUNTED_HERE = frozenset({INFLIGHT_REQUESTS.name, INFLIGHT_TOKENS.name})


class Pool(Protocol):
    """The part of the endpoint table that flow control reads."""

    @property
    def generation(self) -> Generation:
        """The current rows, replaced when membership changes."""

    def view(self, access: Access) -> Endpoints:
        """Return all endpoints, with access checked by `access`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A saturation, 1 for a full pool. `effective` is the maximum of both stages, or the value without roles."""

    effective: float
    prefill: float | None
    decode: float | None
    is_empty: bool


_EMPTY = Reading(1.0, None, None, is_empty=True)


class PoolSaturation:
    """Calls the saturation detector, and caches the answer until its data changes."""

    def __init__(self, detector: Step[float], pool: Pool, access: Access, clock: Callable[[], float]) -> None:
        self._detector = detector
        self._pool = pool
        self._access = access
        self._clock = clock
        self._mark = object()
        self._reading = _EMPTY
        self._generation: Generation | None = None
        self._read_at = 0.0
        self._marked: tuple[dict[object, object], ...] = ()  # `Column.derived`; a changed value clears it, and our mark
        self._members: tuple[Endpoint, ...] = ()
        self._stages: tuple[BoolArray, BoolArray] = _stages_of(())
        declared = detector.instance.subscriptions
        names = [key.name for key in (*declared.consumes, *declared.consumes_optional)]
        self._columns = {*names, *(name.partition("@")[0] for name in names)}
        self.is_counted_here = bool(names) and all(name.partition("@")[0] in _COUNTED_HERE for name in names)
        # In-flight counts fall as soon as a request ends.

    def read(self) -> Reading:
        """Return the saturation, measured at most `FRESH_SECONDS` ago."""
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
        """Return True if the detector's columns have changed; False if it reads none."""
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
    roles = [member.labels.get(ROLE_LABEL) for member in members]
    return np.array([role in PREFILL_ROLES for role in roles], np.bool_), np.array([role in DECODE_ROLES for role in roles], np.bool_)
