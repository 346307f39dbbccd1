"""Ordering, fairness, usage limit and eviction policies."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, count
from typing import Annotated, Literal, cast

from pydantic import ConfigDict, Field, model_validator

from endpick.api import Parameters, PluginContext, Stability
from endpick.api.flow_control import (
    Band,
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    Flow,
    OrderingPolicy,
    SortKey,
    UsageLimitPolicy,
    WaitingRequest,
)
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.latency_ledger import TTFT_HEADERS

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MAX_MILLISECONDS = 2**63 - 1
_DIGITS = 6  # hides rounding errors of equal sums


class FirstComeFirstServed(OrderingPolicy[Parameters]):
    """Serves requests in order of arrival."""

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        return ()


class EarliestDeadlineFirst(OrderingPolicy[Parameters]):
    """Serves the earliest deadline first: deadline = enqueue time + time limit.

    Requests without a time limit come last, ties in order of arrival. While all share `defaultRequestTTL`, this is `fcfs-ordering-policy`.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        return (waiting.enqueued_at + waiting.ttl_seconds if waiting.ttl_seconds > 0 else math.inf,)


class SloDeadline(OrderingPolicy[Parameters]):
    """Serves the earliest TTFT deadline first: deadline = arrival time + objective for the first token.

    The objective is the header `x-llm-d-slo-ttft-ms`, or else `x-slo-ttft-ms`, a non-negative 64-bit integer. Requests without it come
    last, ties in order of arrival.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        request = waiting.request
        text = request.headers.get(TTFT_HEADERS[0]) or request.headers.get(TTFT_HEADERS[1]) or ""
        return (round(request.received_at + _seconds(text), _DIGITS), request.received_at)


def _seconds(text: str) -> float:
    stripped = text.strip()
    if _WHOLE_NUMBER.fullmatch(stripped) is None:
        return math.inf
    milliseconds = int(stripped)
    return milliseconds / 1000 if 0 <= milliseconds <= _MAX_MILLISECONDS else math.inf


class SheddableEvictionFilter(EvictionFilter[Parameters]):
    """Allows the eviction of requests with negative priority."""

    stability = Stability.EXPERIMENTAL

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        return dispatched.request.priority < 0


class PriorityThenTime(EvictionOrderingPolicy[Parameters]):
    """Evicts the lowest priority first and, of equal ones, the request sent last: it loses the least work."""

    stability = Stability.EXPERIMENTAL

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        return (dispatched.request.priority, -dispatched.dispatched_at)


_STATE = "state"
_SLACK = 64


class _Heads:
    __slots__ = ("_number", "heap")

    def __init__(self, band: Band) -> None:
        self._number = count()
        self.heap: list[tuple[SortKey, int, int, Flow]] = []
        self.rebuild(band)

    def rebuild(self, band: Band) -> None:
        self.heap = [(head.key, head.arrival, next(self._number), flow) for flow in band.flows if (head := flow.head) is not None]
        heapify(self.heap)

    def add(self, flow: Flow, head: WaitingRequest) -> None:
        heappush(self.heap, (head.key, head.arrival, next(self._number), flow))

    def best(self) -> Flow | None:
        heap = self.heap
        while heap:
            _, arrival, _, flow = heap[0]
            head = flow.head
            if head is not None and head.arrival == arrival:
                return flow
            heappop(heap)
        return None


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """Serves the request of a band that its ordering policy puts first, whichever flow it is in.

    With `fcfs-ordering-policy` the band is a single queue: a flow with many requests is served more often.
    """

    def choose(self, band: Band) -> Flow | None:
        return self._heads(band).best()

    def flow_changed(self, band: Band, flow: Flow) -> None:
        head, heads = flow.head, self._heads(band)
        if head is not None:
            heads.add(flow, head)
            if len(heads.heap) > 2 * len(band.flows) + _SLACK:
                heads.rebuild(band)

    def _heads(self, band: Band) -> _Heads:
        heads = band.private.get(_STATE)
        if heads is None:
            heads = band.private[_STATE] = _Heads(band)
        return cast("_Heads", heads)


class _Ring:
    __slots__ = ("ids", "known", "last")

    def __init__(self, band: Band) -> None:
        self.ids = sorted(flow.id for flow in band.flows)
        self.known = set(self.ids)
        self.last: str | None = None

    def add(self, flow_id: str) -> None:
        if flow_id not in self.known:
            self.known.add(flow_id)
            insort(self.ids, flow_id)

    def remove(self, flow_id: str) -> None:
        if flow_id in self.known:
            self.known.discard(flow_id)
            del self.ids[bisect_left(self.ids, flow_id)]

    def next(self) -> str | None:
        """Return the id after the last one served, which may have left."""
        if not self.ids:
            return None
        position = 0 if self.last is None else bisect_right(self.ids, self.last)
        return self.ids[position if position < len(self.ids) else 0]


class RoundRobinFairness(FairnessPolicy[Parameters]):
    """Serves the flows of a band in rotation, in the order of their ids compared as text, one request each."""

    def choose(self, band: Band) -> Flow | None:
        flow_id = self._ring(band).next()
        return None if flow_id is None else band.flow(flow_id)

    def flow_changed(self, band: Band, flow: Flow) -> None:
        ring = self._ring(band)
        if flow.head is None:
            ring.remove(flow.id)
        else:
            ring.add(flow.id)

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        self._ring(band).last = flow.id

    def _ring(self, band: Band) -> _Ring:
        ring = band.private.get(_STATE)
        if ring is None:
            ring = band.private[_STATE] = _Ring(band)
        return cast("_Ring", ring)


class StaticLimitParameters(CamelParameters):
    """Sets the ceiling that all priorities share."""

    threshold: Annotated[
        float, Field(ge=0.0, allow_inf_nan=False, description="Requests are dispatched while the saturation of the pool is below this.")
    ] = 1.0


class StaticUsageLimit(UsageLimitPolicy[StaticLimitParameters]):
    """Serves every priority up to the same saturation, `threshold`. Above 1, requests queue in model servers."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.parameters.threshold] * len(priorities)


class HoldbackParameters(CamelParameters):
    """Sets the range of the ceilings, and how priorities map to it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"minCeiling": 0.5}]})

    shape: Annotated[Literal["linear"], Field(description="Shape of the ceilings over the priorities; only `linear`.")] = "linear"
    domain: Annotated[
        Literal["rank", "value", "explicit"],
        Field(description="Ceilings rise with the rank of a priority (`rank`) or with its number (`value`), or are listed (`explicit`)."),
    ] = "rank"
    min_ceiling: Annotated[
        float | None, Field(ge=0.0, lt=1.0, description="Ceiling of the lowest priority; not for `explicit`.", examples=[0.5])
    ] = None
    max_ceiling: Annotated[float, Field(gt=0.0, le=1e6, description="Ceiling of the highest priority; at least minCeiling.")] = 1.0
    ceilings: Annotated[
        Mapping[int, Annotated[float, Field(ge=0.0, le=1.0)]],
        Field(default_factory=dict, description="For `explicit`: ceilings by priority, not rising as it falls."),
    ]

    @model_validator(mode="after")
    def _fits_the_domain(self) -> HoldbackParameters:
        if self.domain == "explicit":
            foreign = self.model_fields_set & {"shape", "min_ceiling", "max_ceiling"}
            if foreign or not self.ceilings:
                raise ValueError("domain explicit needs ceilings, and takes no shape, minCeiling or maxCeiling")
            falling = [self.ceilings[priority] for priority in sorted(self.ceilings, reverse=True)]
            if falling != sorted(falling, reverse=True):
                raise ValueError("ceilings must not rise as the priority falls")
            return self
        if self.ceilings:
            raise ValueError(f"ceilings belong to domain explicit, not to {self.domain}")
        if self.min_ceiling is None:
            raise ValueError(f"domain {self.domain} needs minCeiling")
        if self.max_ceiling < self.min_ceiling:
            raise ValueError("maxCeiling must not be below minCeiling")
        return self


class PriorityHoldback(UsageLimitPolicy[HoldbackParameters]):
    """Holds back room for higher priorities: the lower a priority, the lower its ceiling.

    `rank`: ceiling = maxCeiling - i / (N - 1) * (maxCeiling - minCeiling) for priority i of the N that have a band, 0 being the highest.
    `value`: r = (priority - lowest) / (highest - lowest), ceiling = minCeiling + r * (maxCeiling - minCeiling). One priority: maxCeiling.
    `explicit`: the ceiling in `ceilings`; a priority without one has 0, as have all below it.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HoldbackParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._priorities: Sequence[int] = ()
        self._ceilings: list[float] = []

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        if priorities != self._priorities:
            self._priorities, self._ceilings = priorities, self._computed(priorities)
        return self._ceilings

    def _computed(self, priorities: Sequence[int]) -> list[float]:
        if self.parameters.domain == "explicit":
            return list(accumulate((self.parameters.ceilings.get(priority, 0.0) for priority in priorities), min))
        lowest, highest = self.parameters.min_ceiling or 0.0, self.parameters.max_ceiling
        span = highest - lowest
        if len(priorities) < 2:
            return [highest] * len(priorities)
        if self.parameters.domain == "rank":
            last = len(priorities) - 1
            return [max(lowest, highest - span * (place / last)) for place in range(len(priorities))]
        bottom, top = priorities[-1], priorities[0]
        # Differences of integers are exact.
        return [min(highest, lowest + span * ((priority - bottom) / (top - bottom))) for priority in priorities]


class SoftReflectiveCeiling(UsageLimitPolicy[Parameters]):
    """Throttles lower priorities gradually as the pool fills.

    At saturation s, priority i of N (0 is the highest) is throttled unless s < 1 - i * s / (N - 1): it is served in every p-th dispatch
    cycle, p = max(1, round(s / (1 - s))), never from s = 1 on. The highest has ceiling 1. Cycles count while a priority is throttled and s
    < 1.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._cycles = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        bands = len(priorities)
        if bands < 2:
            return [1.0] * bands
        if not saturation < 1.0:
            return [1.0, *[0.0] * (bands - 1)]
        if saturation < 1.0 - saturation:
            return [1.0] * bands
        self._cycles += 1
        period = max(1, math.floor(saturation / (1.0 - saturation) + 0.5))
        throttled = 1.0 if self._cycles % period == 0 else 0.0
        last = bands - 1
        return [1.0 if saturation < 1.0 - place * saturation / last else throttled for place in range(bands)]
