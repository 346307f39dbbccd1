"""The calls of flow-control policies: each guarded, its answer judged, and what happens instead where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from numbers import Real
from time import perf_counter
from typing import Protocol

from endpick.api.access import Access
from endpick.api.flow_control import Band, DispatchedRequest, Flow, SortKey, WaitingRequest
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS
from endpick.api.request import shown
from endpick.flow_control.policies import BoundEviction, BoundFairness
from endpick.host.boundary import Fault, Step
from endpick.host.failures import CALL_FAILURES, kind_of

_COUNTED = frozenset({INFLIGHT_REQUESTS.name, INFLIGHT_TOKENS.name})
_PLAIN = (int, float)
_SHOWING_SECONDS = 0.002
"""For so long a policy that was left out is told at once of what waits; the rest with the next request that may go."""
_MOST_PARTS = 16
"""Of a key: each is kept while its request waits, and compared with others again and again."""
_LAST: SortKey = (inf,)
"""The key of a request for which the ordering policy failed: behind all whose first number is finite."""


class KeptBand(Band, Protocol):
    """A band, and whether what its fairness policy keeps about it is right."""

    @property
    def is_unknown(self) -> bool:
        """See `BandQueue`."""

    def missed(self) -> None:
        """See `BandQueue`."""

    def next_unknown(self) -> Flow | None:
        """See `BandQueue`."""


class Fairness:
    """A fairness policy, as it serves the bands that name it.

    While its circuit is open it is not called at all, and its bands are served as their requests came. What it was not told then is not
    missing for good: of a band that changed meanwhile it is told all anew, before it is asked about it.
    """

    __slots__ = ("_access", "_changed", "_choose", "_dispatched", "counts_dispatches")

    def __init__(self, bound: BoundFairness, access: Access) -> None:
        self._choose = bound.choose
        self._changed = bound.flow_changed
        self._dispatched = bound.dispatched
        self._access = access
        self.counts_dispatches = bound.dispatched is not None
        """Whether the policy wants to be told of each request that goes."""

    @property
    def plugin(self) -> object:
        """The policy itself, which a reload may carry over."""
        return self._choose.instance.plugin

    def choose(self, band: KeptBand) -> str | Fault | None:
        """The id of the flow to serve next, None for none now; a `Fault` where the policy failed, or named one in which nothing waits."""
        if band.is_unknown and not self._knows(band):
            return self._choose.left_out()
        answer = self._choose.run(self._access, band)
        if answer is None or type(answer) is Fault:
            return answer
        try:
            flow_id = getattr(answer, "id", None)
            if isinstance(flow_id, str) and band.flow(flow_id) is answer:
                return flow_id
        except CALL_FAILURES as problem:
            return self._choose.fault(problem)
        return self._choose.fault(f"chose {kind_of(answer)}, which is no flow of the band in which something waits")

    def flow_changed(self, band: KeptBand, flow: Flow) -> None:
        """Tell the policy, if it wants to know."""
        step = self._changed
        if step is not None and not (step.breaker.state and self._misses(step, band)):
            step.run(self._access, band, flow)

    def dispatched(self, band: KeptBand, flow: Flow, waiting: WaitingRequest) -> None:
        """As `flow_changed`."""
        step = self._dispatched
        if step is not None and not (step.breaker.state and self._misses(step, band)):
            step.run(self._access, band, flow, waiting)

    @staticmethod
    def _misses(step: Step, band: KeptBand) -> bool:
        """Whether the policy is left out now, and misses a change of the band."""
        if not step.breaker.seconds_left:
            return False
        step.left_out()
        band.missed()
        return True

    def _knows(self, band: KeptBand) -> bool:
        """Tell the policy of flows that wait in a band, for as long as it may take at once; whether it was told of all."""
        step = self._changed
        breaker = self._choose.breaker
        until = perf_counter() + _SHOWING_SECONDS
        while not breaker.seconds_left:
            flow = band.next_unknown()
            if flow is None:
                return True
            if step is not None:
                step.run(self._access, band, flow)
                if perf_counter() >= until:
                    return False
        return False


class Ordering:
    """An ordering policy, as it serves the bands that name it."""

    __slots__ = ("_access", "_sort_key")

    def __init__(self, sort_key: Step, access: Access) -> None:
        self._sort_key = sort_key
        self._access = access

    @property
    def plugin(self) -> object:
        """See `Fairness`."""
        return self._sort_key.instance.plugin

    def key(self, waiting: WaitingRequest) -> SortKey:
        """The key of a request."""
        return _judged(self._sort_key, self._sort_key.run(self._access, waiting))


def _judged(step: Step, key: object) -> SortKey:
    """What a policy answered, if it is a key; the last of all keys if not."""
    if type(key) is Fault:
        return _LAST
    try:
        if type(key) is tuple and len(key) <= _MOST_PARTS:
            # Nearly every key; a reload asks for those of all that wait at once.
            for part in key:
                if type(part) not in _PLAIN or isnan(part):
                    break
            else:
                return key
        if isinstance(key, tuple) and len(key) <= _MOST_PARTS and all(isinstance(part, Real) and not isnan(part) for part in key):
            # Compared again and again, where the policy is not guarded: by then they are numbers of Python's own.
            return tuple([part if type(part) in _PLAIN else float(part) for part in key])
    except CALL_FAILURES as problem:
        step.fault(problem)
    else:
        step.fault(f"answered {kind_of(key)}, not a tuple of up to {_MOST_PARTS} numbers")
    return _LAST


class UsageLimit:
    """The usage-limit policy."""

    __slots__ = ("_access", "_ceilings")

    def __init__(self, ceilings: Step, access: Access) -> None:
        self._ceilings = ceilings
        self._access = access

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """A ceiling for each priority, none greater than the one before it; 1 for each after a fault."""
        answer = self._ceilings.run(self._access, saturation, priorities)
        if type(answer) is Fault:
            return [1.0] * len(priorities)
        try:
            problem: BaseException | str = _problem_with(answer, len(priorities))
            if not problem and isinstance(answer, list | tuple):
                return [float(ceiling) for ceiling in answer]
        except CALL_FAILURES as raised:
            problem = raised
        self._ceilings.fault(problem)
        return [1.0] * len(priorities)


def _problem_with(answer: object, priorities: int) -> str:
    """What is wrong with ceilings; empty for nothing."""
    if not isinstance(answer, list | tuple) or len(answer) != priorities:
        return f"answered {kind_of(answer)}, not {priorities} numbers, one for each priority"
    before = inf
    for ceiling in answer:
        if not isinstance(ceiling, float | int) or not ceiling <= before:
            return f"answered {shown(ceiling)} after {before!r}; each must be a number not greater than the one before it"
        before = float(ceiling)
    return ""


class Detector:
    """The saturation detector, asked about a part of the pool."""

    __slots__ = ("_access", "_saturation", "consumed", "counts_requests")

    def __init__(self, saturation: Step, access: Access) -> None:
        self._saturation = saturation
        self._access = access
        declared = saturation.instance.subscriptions
        names = [key.name for key in (*declared.consumes, *declared.consumes_optional)]
        self.consumed = tuple(dict.fromkeys((*names, *(name.partition("@")[0] for name in names))))
        """The columns on which its answer depends, by name, also without the producer; none for a detector that keeps its own books."""
        self.counts_requests = bool(names) and all(name.partition("@")[0] in _COUNTED for name in names)
        """Whether it sees at once that a request has ended, because it reads what this process counts and nothing else."""

    def saturation(self, endpoints: object) -> float:
        """How full they are, 0 or more. After a fault 0, as if there were no detector; 1 where its `onFault` asks for refusal."""
        answer = self._saturation.run(self._access, endpoints)
        try:
            if isinstance(answer, Real) and not isnan(answer):
                return max(0.0, float(answer))
            fault = answer if isinstance(answer, Fault) else self._saturation.fault(f"answered {kind_of(answer)}, not a number")
        except CALL_FAILURES as problem:
            fault = self._saturation.fault(problem)
        return 1.0 if fault.refuses else 0.0


class Eviction:
    """The two policies of eviction."""

    __slots__ = ("_access", "_is_evictable", "_sort_key")

    def __init__(self, bound: BoundEviction, access: Access) -> None:
        self._is_evictable = bound.is_evictable
        self._sort_key = bound.sort_key
        self._access = access

    def allows(self, dispatched: DispatchedRequest) -> bool:
        """Whether a request may be evicted; False after a fault."""
        answer = self._is_evictable.run(self._access, dispatched)
        if type(answer) is not bool and type(answer) is not Fault:
            self._is_evictable.fault(f"answered {kind_of(answer)}, not a boolean")
        return answer is True

    def key(self, dispatched: DispatchedRequest) -> SortKey:
        """Its place among the others; behind them after a fault."""
        return _judged(self._sort_key, self._sort_key.run(self._access, dispatched))
