"""`latency-scorer` rates endpoints by predicted latency; `no-hit-lru-scorer` spreads requests with uncached prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    Category,
    CycleState,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PreRequest,
    SchedulingResult,
    Scorer,
    ScoringState,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.fleet import LearntState
from endpick.api.keys import INFLIGHT_REQUESTS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TPOT_HEADROOM, TTFT_HEADROOM, PrefixBlocks
from endpick.api.plugin import MAX_DUMPED, ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.label_filters import PerPool
from endpick_builtin.recency import Recency
from endpick_builtin.scorers.affinity import NOTHING
from endpick_builtin.scorers.load import share_left, smaller_is_better

MILLISECONDS = 1000.0
NO_SPREAD_MS = 1e-9
MIDDLE = 0.5


class LatencyParameters(CamelParameters):
    """Sets the weights of predicted latencies, and of load and cache without predictions."""

    ttft_weight: Annotated[float, Field(ge=0.0, allow_inf_nan=False, description="Weight of the time to the first token.")] = 0.8
    tpot_weight: Annotated[float, Field(ge=0.0, allow_inf_nan=False, description="Weight of the time for each further token.")] = 0.2
    headroom_selection_strategy: Annotated[
        Literal["least", "most"],
        Field(description="`least` fills endpoints that are just quick enough first; `most` prefers the quickest."),
    ] = "least"
    composite_kv_weight: Annotated[
        float,
        Field(alias="compositeKVWeight", ge=0.0, allow_inf_nan=False, description="Without predictions: weight of the free KV cache."),
    ] = 1.0
    composite_queue_weight: Annotated[
        float, Field(ge=0.0, allow_inf_nan=False, description="Without predictions: weight of the queue.")
    ] = 1.0
    composite_prefix_weight: Annotated[
        float, Field(ge=0.0, allow_inf_nan=False, description="Without predictions: weight of the cached prompt.")
    ] = 1.0
    latency_prediction_info_producer_name: Annotated[str, Field(description="Instance that predicts; empty for the only one.")] = ""
    prefix_match_info_producer_name: Annotated[str, Field(description="Instance that provides prefix matches; empty for the only one.")] = (
        ""
    )


class LatencyScorer(Scorer[LatencyParameters]):
    """Prefers endpoints whose predicted latency suits the request.

    One group is rated, others score 0: endpoints without a negative headroom (a missing one is not negative); else idle ones; else the
    first non-empty group of: TPOT negative, TTFT negative, both. n = (|headroom| - min) / (max - min) within it, 0 if missing; if all are
    equal, n = 0.5 and the other latency gets the whole weight. c = a * n(TTFT) + b * n(TPOT), a + b = 1. score = (int(100 * (1 - c)) + 1) /
    100 for `least` and negative groups, (int(100 * c) + 1) / 100 for `most`, at most 1.

    Without any prediction, score = round(100 * (wkv * (1 - usage) + wq * (longest queue - queue) / longest queue + wp * cached share)) /
    100, with composite weights scaled to a sum of 1 (all 0: the KV cache alone). Metrics never reported count as full.
    """

    consumes = (TTFT_HEADROOM, TPOT_HEADROOM, INFLIGHT_REQUESTS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE, PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    category = Category.BALANCE

    @classmethod
    def subscriptions(cls, parameters: LatencyParameters) -> Subscriptions:
        predictor, prefix = parameters.latency_prediction_info_producer_name, parameters.prefix_match_info_producer_name
        predicted = (TTFT_HEADROOM.from_producer(predictor), TPOT_HEADROOM.from_producer(predictor))
        matches = (PREFIX_MATCH_BLOCKS.from_producer(prefix), PREFIX_BLOCKS.from_producer(prefix))
        return Subscriptions((*predicted, *matches, INFLIGHT_REQUESTS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE))

    def __init__(self, name: str, parameters: LatencyParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._ttft = TTFT_HEADROOM.from_producer(parameters.latency_prediction_info_producer_name)
        self._tpot = TPOT_HEADROOM.from_producer(parameters.latency_prediction_info_producer_name)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._shares = _shares(parameters.ttft_weight, parameters.tpot_weight)
        self._composite = _shares(parameters.composite_kv_weight, parameters.composite_queue_weight, parameters.composite_prefix_weight)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        ttft, tpot = state.column(self._ttft, endpoints) * MILLISECONDS, state.column(self._tpot, endpoints) * MILLISECONDS
        is_idle = ~(endpoints[INFLIGHT_REQUESTS] > 0.0)
        predicted = np.fmax(ttft, tpot)
        if np.count_nonzero(np.isnan(predicted)) == len(predicted):
            return self._without_predictions(endpoints, state)
        group, most = _group(ttft, tpot, is_idle)
        scores = np.zeros(len(endpoints))
        scores[group] = self._rated(np.nan_to_num(ttft[group]), np.nan_to_num(tpot[group]), most=most)
        return scores

    def _rated(self, ttft: FloatArray, tpot: FloatArray, *, most: bool) -> FloatArray:
        (first, first_varies), (second, second_varies) = _spread(np.abs(ttft)), _spread(np.abs(tpot))
        a, b = self._shares
        if first_varies != second_varies:
            a, b = (1.0, 0.0) if first_varies else (0.0, 1.0)
        combined = a * first + b * second
        if not (most and self.parameters.headroom_selection_strategy == "most"):
            combined = 1.0 - combined
        return np.minimum((np.trunc(combined * 100.0) + 1.0) / 100.0, 1.0)

    def _without_predictions(self, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        kv, queue, prefix = self._composite
        total = kv * endpoints.derived(KV_CACHE_USAGE, share_left) + queue * endpoints.derived(WAITING_QUEUE_SIZE, _against_the_longest)
        total += prefix * _cached_share(state.get(self._blocks), state.column(self._matches, endpoints))
        return np.floor(total * 100.0 + 0.5) / 100.0


def _cached_share(blocks: PrefixBlocks | None, matched: FloatArray) -> FloatArray:
    if blocks is None or not blocks.total_blocks:
        return np.zeros(len(matched))
    known: FloatArray = np.fmax(matched, NOTHING) / blocks.total_blocks
    return known


def _shares(first: float, *others: float) -> tuple[float, ...]:
    """Scale weights to a sum of 1; if all are 0, the first gets it."""
    total = first + sum(others)
    return (first / total, *(other / total for other in others)) if total > 0.0 else (1.0, *(0.0 for _ in others))


def _group(ttft: FloatArray, tpot: FloatArray, is_idle: BoolArray) -> tuple[BoolArray, bool]:
    late_first, late_next = ttft < 0.0, tpot < 0.0
    positive = ~(late_first | late_next)
    if np.count_nonzero(positive):
        return positive, True
    if np.count_nonzero(is_idle):
        return is_idle, False
    groups = (late_next & ~late_first, late_first & ~late_next)
    return next((group for group in groups if np.count_nonzero(group)), late_first & late_next), False


def _spread(values: FloatArray) -> tuple[FloatArray, bool]:
    """Return (value - min) / (max - min) and True; 0.5 and False if all are equal."""
    if values.max() - values.min() <= NO_SPREAD_MS:
        return np.full(len(values), MIDDLE), False
    return smaller_is_better(-values), True


def _against_the_longest(queues: FloatArray) -> FloatArray:
    """Return (longest - queue) / longest; 1 if all are 0, 0 if unknown."""
    longest = np.fmax.reduce(queues)
    return np.fmax(1.0 - queues / longest if longest > 0.0 else 1.0 - queues, 0.0)


DEFAULT_LRU_SIZE = 1024
WARM = 0.5


class ColdPicks:
    """Keeps the time of each endpoint's last prompt that no candidate had cached."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest = -math.inf
        self._times: Recency[str, float] = Recency()
        self._by_endpoint = PerPool(self._of)

    def last(self, endpoints: Endpoints) -> FloatArray:
        """Return the time of each endpoint's last cold request; -inf without one."""
        return endpoints.gather(self._by_endpoint.of(endpoints))

    def touch(self, picked: Endpoints, now: float) -> str:
        """Record a cold request at the first of the picked endpoints, and return its name."""
        name = picked.take([0]).members[0].name
        self._latest = max(now, math.nextafter(self._latest, math.inf))
        self._times.use(name, self._latest)
        self._set(picked, name, self._latest)
        for oldest, _ in self._times.trim(self._most):
            self._set(picked, oldest, -math.inf)
        return name

    def merge(self, times: Mapping[str, float]) -> None:
        """Add times of other pickers; the later time counts."""
        for name, at in sorted(times.items(), key=lambda item: item[1]):
            if at > self._times.get(name, -math.inf):
                self._times.use(name, at)
        self._times.trim(self._most)
        self._by_endpoint = PerPool(self._of)

    def times(self) -> Mapping[str, float]:
        return self._times

    def forget(self, name: str) -> None:
        self._times.pop(name, None)
        self._by_endpoint = PerPool(self._of)  # a server that restarted stays in the pool

    def _of(self, pool: tuple[Endpoint, ...]) -> FloatArray:
        return np.array([self._times.get(endpoint.name, -math.inf) for endpoint in pool], dtype=np.float64)

    def _set(self, endpoints: Endpoints, name: str, at: float) -> None:
        position = endpoints.pool_position(name)
        if position is not None:
            self._by_endpoint.of(endpoints)[position] = at


_BY_PRODUCER = "name the producer with prefixMatchInfoProducerName"


class NoHitLRUParameters(CamelParameters):
    """Sets how many endpoints are remembered, and names the producer of matches."""

    lru_size: Annotated[int, Field(description=f"Endpoints to remember; 0 and less mean {DEFAULT_LRU_SIZE}, as in llm-d.")] = (
        DEFAULT_LRU_SIZE
    )
    prefix_match_info_producer_name: Annotated[str, Field(description="Instance that provides prefix matches; empty for the only one.")] = (
        ""
    )
    prefix_plugin_type: Annotated[str | None, ignored("prefixPluginType", _BY_PRODUCER)] = None
    prefix_plugin_name: Annotated[str | None, ignored("prefixPluginName", _BY_PRODUCER)] = None


_encode: Final = msgspec.msgpack.encode
_read_ages: Final = msgspec.msgpack.Decoder(dict[str, float]).decode


class NoHitLRUScorer(Scorer[NoHitLRUParameters], PreRequest[NoHitLRUParameters], LearntState):
    """For a prompt that no candidate has cached, prefers the endpoint that got such a prompt least recently.

    A request is cold if no candidate is known to have a block of its prompt; others score 0.5. Candidates that never got one rank first, in
    pool order, then the least recent: score = 1 - rank / (candidates - 1), 1 for a single one. A request that was cold in every profile
    counts for each profile's first pick.
    """

    consumes = (PREFIX_MATCH_BLOCKS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: NoHitLRUParameters) -> Subscriptions:
        return Subscriptions((PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name),))

    def __init__(self, name: str, parameters: NoHitLRUParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._picks = ColdPicks(parameters.lru_size if parameters.lru_size > 0 else DEFAULT_LRU_SIZE)
        self._unpublished: set[str] = set()

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        cold = not np.count_nonzero(state.column(self._matches, endpoints) > 0.0)
        state.private["cold"] = cold and state.private.get("cold", True)
        count = len(endpoints)
        if not cold:
            return np.full(count, WARM)
        scores = np.empty(count)
        scores[self._picks.last(endpoints).argsort(kind="stable")] = np.linspace(1.0, 0.0, count)
        return scores

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        if state.private.get("cold"):
            for run in result.runs.values():
                if run.picked is not None:
                    self._unpublished.add(self._picks.touch(run.picked, self.context.clock()))

    def snapshot(self) -> Iterable[bytes]:
        if times := self._picks.times():
            yield self._ages(times)

    def restore(self, part: bytes) -> None:
        self.apply(part, "")

    def drain_deltas(self) -> bytes:
        unpublished, self._unpublished = self._unpublished, set()
        return self._ages(unpublished)

    def apply(self, deltas: bytes, origin: str) -> None:
        now = self.context.clock()
        self._picks.merge({name: now - age for name, age in _read_ages(deltas).items()})

    def dump_state(self) -> object:
        used = list(self._picks.times())
        return {"total": len(used), "leastRecentFirst": used[:MAX_DUMPED]}

    def endpoint_removed(self, name: str) -> None:
        self._picks.forget(name)

    def _ages(self, names: Iterable[str]) -> bytes:
        now, times = self.context.clock(), self._picks.times()
        ages = {name: now - times[name] for name in names if name in times}
        return _encode(ages) if ages else b""
