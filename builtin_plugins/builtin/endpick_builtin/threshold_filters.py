"""Filters by load, cached prompt and predicted latency."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    DataKey,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    PluginContext,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick.api.fast_metrics import Counts
from endpick.api.keys import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    PREDICTED_TTFT,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
)
from endpick_builtin.camel_parameters import CamelParameters


def kept_or_all(mask: BoolArray, endpoints: Endpoints, *, fall_back: bool) -> BoolArray | Endpoints:
    """Return the mask, or all endpoints if it keeps none and `fall_back` is set."""
    return endpoints if fall_back and not np.count_nonzero(mask) else mask


Metric: TypeAlias = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
"""The metrics that a condition can limit."""


_KEYS = {
    "active-requests": INFLIGHT_REQUESTS,
    "running-requests": RUNNING_REQUESTS_SIZE,
    "waiting-queue": WAITING_QUEUE_SIZE,
    "kv-cache-utilization": KV_CACHE_USAGE,
}


class Condition(CamelParameters):
    """Limits a metric to a maximum."""

    metric: Annotated[
        Metric,
        Field(
            description="`active-requests` (open requests of this picker's), `running-requests`, `waiting-queue` or `kv-cache-utilization`."
        ),
    ]
    max_value: Annotated[float, Field(ge=0.0, allow_inf_nan=False, description="Largest value that is kept; 0 to 1 for the KV cache.")]

    @model_validator(mode="after")
    def _is_a_share(self) -> Self:
        if self.metric == "kv-cache-utilization" and self.max_value > 1.0:
            raise ValueError(f"maxValue of {self.metric} is a share, at most 1, not {self.max_value:g}")
        return self


class UtilizationFilterParameters(CamelParameters):
    """Lists the conditions that endpoints must meet, and sets the fallback if none does."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            min_length=1,
            description="Conditions that an endpoint must meet, all of them.",
            examples=[
                [{"metric": "active-requests", "maxValue": 64}, {"metric": "kv-cache-utilization", "maxValue": 0.9}],
                [{"metric": "running-requests", "maxValue": 32}, {"metric": "waiting-queue", "maxValue": 0}],
            ],
        ),
    ]
    fallback_on_empty: Annotated[bool, Field(description="Keep all endpoints when the conditions would leave none.")] = False
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the open requests; empty for the only one.")] = ""

    def limits(self) -> tuple[tuple[DataKey[float], float], ...]:
        producer = self.in_flight_load_producer_name
        return tuple(
            (key.from_producer(producer) if key is INFLIGHT_REQUESTS else key, condition.max_value)
            for key, condition in ((_KEYS[condition.metric], condition) for condition in self.conditions)
        )


class UtilizationFilter(Filter[UtilizationFilterParameters]):
    """Keeps endpoints with every metric at most `maxValue`.

    A metric that was never reported excludes nothing, as in llm-d.
    """

    aliases = ("active-request-filter",)
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: UtilizationFilterParameters) -> Subscriptions:
        return Subscriptions(tuple(dict.fromkeys(key for key, _ in parameters.limits())))

    def __init__(self, name: str, parameters: UtilizationFilterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._limits = parameters.limits()

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        too_busy = np.zeros(len(endpoints), dtype=np.bool_)
        for key, limit in self._limits:
            too_busy |= endpoints[key] > limit  # False for NaN
        return kept_or_all(~too_busy, endpoints, fall_back=self.parameters.fallback_on_empty)


MILLISECONDS = 1000.0
LONGEST = np.finfo(np.float64).max  # TTFT without a prediction; finite, so that differences are 0


class PrefixCacheAffinityParameters(CamelParameters):
    """Sets when a cached prompt binds a request to the endpoints that hold it."""

    affinity_threshold: Annotated[float, Field(le=1.0, description="Share of the prompt that must be cached; 0 and less keep all.")] = 0.80
    exploration_probability: Annotated[float, Field(ge=0.0, le=1.0, description="Share of the requests for which all are kept anyway.")] = (
        0.0
    )
    max_ttft_penalty_ms: Annotated[
        float,
        Field(
            alias="maxTTFTPenaltyMs",
            ge=0.0,
            description="Extra time to first token tolerated for a cached prompt, in milliseconds; 0: unlimited.",
        ),
    ] = 18_000.0
    ttft_source: Annotated[
        Literal["prefillThroughput", "latencyPredictor"],
        Field(
            description="`prefillThroughput` (tokens in flight by `peakPrefillThroughput`) or `latencyPredictor`.",
            examples=["latencyPredictor"],
        ),
    ] = "prefillThroughput"
    peak_prefill_throughput: Annotated[float, Field(gt=0.0, description="Prompt tokens that one endpoint works on in a second.")] = 15_928.0
    prefix_match_info_producer_name: Annotated[str, Field(description="Instance that provides prefix matches; empty for the only one.")] = (
        ""
    )
    latency_prediction_info_producer_name: Annotated[str, Field(description="Instance that predicts; empty for the only one.")] = ""
    in_flight_load_producer_name: Annotated[
        str, Field(description="Instance that counts the tokens in flight; empty for the only one.")
    ] = ""


class PrefixCacheAffinityFilter(Filter[PrefixCacheAffinityParameters]):
    """Keeps the endpoints that have cached most of the prompt, unless others would be much quicker.

    sticky = matched blocks / all blocks >= `affinityThreshold`. All are kept if none is sticky, with probability `explorationProbability`,
    and if min TTFT(sticky) - min TTFT(others) > `maxTTFTPenaltyMs`. TTFT = tokens in flight / `peakPrefillThroughput`, or predicted
    (infinite if missing).
    """

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheAffinityParameters) -> Subscriptions:
        producer = parameters.prefix_match_info_producer_name
        prefix = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer))
        if parameters.ttft_source == "latencyPredictor":
            return Subscriptions((*prefix, PREDICTED_TTFT.from_producer(parameters.latency_prediction_info_producer_name)))
        return Subscriptions((*prefix, INFLIGHT_TOKENS.from_producer(parameters.in_flight_load_producer_name)))

    def __init__(self, name: str, parameters: PrefixCacheAffinityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._predicted = PREDICTED_TTFT.from_producer(parameters.latency_prediction_info_producer_name)
        self._tokens = INFLIGHT_TOKENS.from_producer(parameters.in_flight_load_producer_name)
        decisions = Counts(
            "llm_d_epp_prefix_cache_affinity_filter_decisions_total", "Requests by the filter's decision.", ("outcome",), context.registry
        )
        self._no_match, self._sticky, self._override = map(decisions.labels, ("no_match", "sticky", "load_override"))

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        parameters, blocks = self.parameters, state.get(self._blocks)
        if len(endpoints) < 2 or parameters.affinity_threshold <= 0.0 or blocks is None or not blocks.total_blocks:
            return endpoints
        if parameters.exploration_probability and self.context.random.random() < parameters.exploration_probability:
            return endpoints
        sticky: BoolArray = state.column(self._matches, endpoints) / blocks.total_blocks >= parameters.affinity_threshold
        count = np.count_nonzero(sticky)
        if count == 0:
            self._no_match.value += 1
            return endpoints
        if parameters.max_ttft_penalty_ms and count < len(endpoints):
            times = self._ttft_ms(endpoints, state)
            if times[sticky].min() - times[~sticky].min() > parameters.max_ttft_penalty_ms:
                self._override.value += 1
                return endpoints
        self._sticky.value += 1
        return sticky

    def _ttft_ms(self, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        if self.parameters.ttft_source == "latencyPredictor":
            predicted = state.column(self._predicted, endpoints) * MILLISECONDS
            return np.where(np.isnan(predicted), LONGEST, predicted)
        return np.fmax(endpoints[self._tokens], 0.0) * (MILLISECONDS / self.parameters.peak_prefill_throughput)


class SLOHeadroomTierParameters(CamelParameters):
    """Sets how often endpoints without headroom are kept, to explore them."""

    epsilon_explore_neg: Annotated[
        float,
        Field(
            ge=0.0,
            le=1.0,
            description="Share of the requests that go to endpoints expected to be too slow, although others would be quick enough.",
        ),
    ] = 0.01
    latency_prediction_info_producer_name: Annotated[str, Field(description="Instance that predicts; empty for the only one.")] = ""


class SLOHeadroomTierFilter(Filter[SLOHeadroomTierParameters]):
    """Keeps the endpoints that are expected to meet the request's latency objectives.

    positive = headroom of TTFT and TPOT >= 0; negative = all others. If both tiers have endpoints, the negative one is kept with
    probability `epsilonExploreNeg`, else the positive one. Without any prediction all are kept.
    """

    consumes = (TTFT_HEADROOM, TPOT_HEADROOM)

    @classmethod
    def subscriptions(cls, parameters: SLOHeadroomTierParameters) -> Subscriptions:
        producer = parameters.latency_prediction_info_producer_name
        return Subscriptions((TTFT_HEADROOM.from_producer(producer), TPOT_HEADROOM.from_producer(producer)))

    def __init__(self, name: str, parameters: SLOHeadroomTierParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._ttft = TTFT_HEADROOM.from_producer(parameters.latency_prediction_info_producer_name)
        self._tpot = TPOT_HEADROOM.from_producer(parameters.latency_prediction_info_producer_name)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        ttft, tpot = state.column(self._ttft, endpoints), state.column(self._tpot, endpoints)
        if len(endpoints) < 2:
            return endpoints
        worst = np.fmin(ttft, tpot)  # ignores NaN
        positive: BoolArray = worst >= 0.0
        count = np.count_nonzero(positive)
        if count == 0 or count == len(endpoints):
            return endpoints
        return ~positive if self.context.random.random() < self.parameters.epsilon_explore_neg else positive
