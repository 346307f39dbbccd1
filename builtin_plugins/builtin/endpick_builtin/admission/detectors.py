"""Saturation detectors, also filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    DataKey,
    Duration,
    Endpoint,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    PluginContext,
    RefersTo,
    SaturationDetector,
    ScoringState,
    Subscriptions,
)
from endpick.api.fast_metrics import Levels
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.label_filters import ROLE_LABEL, DecodeFilter, PerPool, PrefillFilter


class ConcurrencyParameters(CamelParameters):
    """Sets the requests and tokens in flight at which an endpoint is full."""

    max_concurrency: Annotated[int, Field(gt=0, description="Requests in flight at which an endpoint is full: `requests`, `hybrid`.")] = 100
    max_token_concurrency: Annotated[int, Field(gt=0, description="Tokens in flight at which an endpoint is full: `tokens`, `hybrid`.")] = (
        1_000_000
    )
    headroom: Annotated[
        float, Field(ge=0.0, le=1e6, description="As a filter: how far above its capacity an endpoint may be, as a share of it.")
    ] = 0.0
    concurrency_mode: Annotated[
        Literal["requests", "tokens", "hybrid"],
        Field(description="Load to count: `requests`, `tokens`, or the higher ratio of both: `hybrid`."),
    ] = "requests"
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the load in flight; empty for the only one.")] = ""

    def limits(self) -> tuple[tuple[DataKey[float], int], ...]:
        requests = INFLIGHT_REQUESTS.from_producer(self.in_flight_load_producer_name), self.max_concurrency
        tokens = INFLIGHT_TOKENS.from_producer(self.in_flight_load_producer_name), self.max_token_concurrency
        match self.concurrency_mode:
            case "requests":
                return (requests,)
            case "tokens":
                return (tokens,)
            case "hybrid":
                return (requests, tokens)


class ConcurrencyDetector(SaturationDetector[ConcurrencyParameters], Filter[ConcurrencyParameters]):
    """Rates endpoints by the requests or tokens that this picker has in flight there.

    saturation = total load / total capacity, for `hybrid` the mean of each endpoint's larger ratio; 1 without endpoints. The filter keeps
    loads below floor(capacity * (1 + headroom)), for `hybrid` both; if none is left, the request gets 429.
    """

    consumes = (INFLIGHT_REQUESTS, INFLIGHT_TOKENS)

    @classmethod
    def subscriptions(cls, parameters: ConcurrencyParameters) -> Subscriptions:
        return Subscriptions(tuple(key for key, _ in parameters.limits()))

    def __init__(self, name: str, parameters: ConcurrencyParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._limits = parameters.limits()
        self._allowed = tuple((key, int(capacity * (1.0 + parameters.headroom))) for key, capacity in self._limits)

    def saturation(self, endpoints: Endpoints) -> float:
        if not len(endpoints):
            return 1.0
        ratios = [_load(endpoints, key) / capacity for key, capacity in self._limits]
        return float(np.maximum.reduce(ratios).mean())

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        keep = np.ones(len(endpoints), dtype=np.bool_)
        for key, allowed in self._allowed:
            keep &= _load(endpoints, key) < allowed
        return keep


def _load(endpoints: Endpoints, key: DataKey[float]) -> FloatArray:
    load: FloatArray = np.fmax(endpoints[key], 0.0)
    return load


_LOG_SECONDS = 30.0
_ENOUGH_FOR_A_MEDIAN = 4


class FullnessParameters(CamelParameters):
    """Sets the queue depth and KV-cache usage at which an endpoint is full."""

    queue_depth_threshold: Annotated[int, Field(gt=0, description="Waiting requests at which an endpoint is full.")] = 5
    kv_cache_util_threshold: Annotated[
        float, Field(gt=0.0, le=1.0, description="KV-cache usage (0 to 1) at which an endpoint is full.")
    ] = 0.8


def fullness(endpoints: Endpoints, parameters: FullnessParameters) -> FloatArray:
    """Return max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold), at least 0; NaN if neither was reported."""
    queue = endpoints[WAITING_QUEUE_SIZE] / parameters.queue_depth_threshold
    usage = endpoints[KV_CACHE_USAGE] / parameters.kv_cache_util_threshold
    larger: FloatArray = np.fmax(queue, usage)
    return np.maximum(larger, 0.0)  # keeps NaN


def mean_fullness(values: FloatArray) -> float:
    """Return the mean, counting unknown endpoints as 1.

    From four endpoints on, each counts at most max(1, 2 * median), so that one long queue cannot saturate the pool.
    """
    if not len(values):
        return 1.0
    known = np.where(np.isnan(values), 1.0, values)
    if len(known) >= _ENOUGH_FOR_A_MEDIAN:
        known = np.minimum(known, max(1.0, 2.0 * float(np.median(known))))
    return float(known.mean())


class UtilizationParameters(FullnessParameters):
    """Sets the thresholds of a full endpoint, and the age from which its metrics are stale."""

    metrics_staleness_threshold: Annotated[
        Duration, Field(gt=0, description="Age from which metrics are stale; see `stalenessPolicy`.")
    ] = 0.2
    staleness_policy: Annotated[
        Literal["saturated", "ignore"],
        Field(description="An endpoint without fresh metrics counts as full (`saturated`), or is left out of the mean (`ignore`)."),
    ] = "saturated"
    headroom: Annotated[
        float, Field(ge=0.0, description="As a filter: how far above the thresholds an endpoint may be, as a share of them.")
    ] = 0.0


class UtilizationDetector(SaturationDetector[UtilizationParameters], Filter[UtilizationParameters]):
    """Rates each endpoint by the fuller of queue and KV cache.

    saturation = mean of max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold); 1 without endpoints. An endpoint without a fresh
    metric counts as 1, and in `llm_d_epp_flow_control_stale_endpoints`; `stalenessPolicy: ignore` leaves it out of the mean, unless all are
    stale. From four endpoints on, each counts at most max(1, 2 * median). The filter keeps fresh endpoints below both thresholds * (1 +
    headroom), or all if none is left.
    """

    consumes_optional = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def __init__(self, name: str, parameters: UtilizationParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.metrics_staleness_threshold
        text = "Endpoints without fresh metrics when the detector last ran."
        self._stale = Levels("llm_d_epp_flow_control_stale_endpoints", text, ("detector",), context.registry).labels(name)
        self._logged_at = -_LOG_SECONDS
        if parameters.headroom > 1.0:
            context.logger.warning("headroom %g lets endpoints be more than twice as full as the thresholds say", parameters.headroom)

    def saturation(self, endpoints: Endpoints) -> float:
        values = self._utilization(endpoints)
        if self.parameters.staleness_policy == "ignore":
            known = values[~np.isnan(values)]
            return mean_fullness(known if len(known) else values)
        return mean_fullness(values)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        keep: BoolArray = self._utilization(endpoints) < 1.0 + self.parameters.headroom
        return keep if keep.any() else np.ones(len(endpoints), dtype=np.bool_)

    def _utilization(self, endpoints: Endpoints) -> FloatArray:
        age = np.minimum(endpoints.age(WAITING_QUEUE_SIZE), endpoints.age(KV_CACHE_USAGE))
        fresh = age <= self.parameters.metrics_staleness_threshold
        stale = len(endpoints) - int(np.count_nonzero(fresh))
        self._stale.value = float(stale)
        values = fullness(endpoints, self.parameters)
        if not stale:
            return values
        self._log_stale(stale, len(endpoints))
        return np.where(fresh, values, np.nan)

    def _log_stale(self, stale: int, endpoints: int) -> None:
        now = self.context.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            self.context.logger.warning(
                "%d of %d endpoints have no metrics younger than %g s (metricsStalenessThreshold); stalenessPolicy is %s",
                stale,
                endpoints,
                self.parameters.metrics_staleness_threshold,
                self.parameters.staleness_policy,
            )


Stage: TypeAlias = Literal["prefill", "decode"]
"""A stage of a request whose saturation flow control measures separately."""


class MaxSaturationParameters(CamelParameters):
    """Names the detectors to combine, and limits them to stages."""

    detectors: Annotated[
        tuple[str, ...],
        RefersTo(SaturationDetector),
        Field(
            min_length=1,
            description="Saturation detectors; the largest value counts.",
            examples=[["concurrency-detector", "utilization-detector"]],
        ),
    ]
    stages: Annotated[
        Mapping[str, Annotated[tuple[Stage, ...], Field(min_length=1)]],
        Field(default_factory=dict, description="Stages of a detector, `prefill` or `decode`; without an entry it counts for all."),
    ]

    @model_validator(mode="after")
    def _children_are_known_once(self) -> Self:
        [(name, times)] = Counter(self.detectors).most_common(1)
        if times > 1:
            raise ValueError(f"detectors names '{name}' twice")
        unknown = sorted(self.stages.keys() - set(self.detectors))
        if unknown:
            raise ValueError(f"stages names '{unknown[0]}', which is not one of detectors")
        return self


class MaxSaturationDetector(SaturationDetector[MaxSaturationParameters]):
    """Reports the largest saturation of other detectors.

    `stages` limits a detector to a stage: 0 if a stage has none. In a pool without prefill endpoints all count.
    `llm_d_epp_flow_control_detector_saturation` shows each value by detector and stage.
    """

    def __init__(self, name: str, parameters: MaxSaturationParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._children = {child: context.instance(child, SaturationDetector) for child in parameters.detectors}
        text = "Saturation as one of the combined detectors measures it."
        self._values = Levels("llm_d_epp_flow_control_detector_saturation", text, ("detector", "stage"), context.registry)
        self._can_serve = PerPool(_stages_served)

    def saturation(self, endpoints: Endpoints) -> float:
        stage, largest = self._stage_of(endpoints), 0.0
        for name, detector in self._children.items():
            if stage is None or stage in self.parameters.stages.get(name, (stage,)):
                value = detector.saturation(endpoints)
                self._values.labels(name, stage or "").value = value
                largest = max(largest, value)
        return largest

    def _stage_of(self, endpoints: Endpoints) -> Stage | None:
        """Return the stage that all endpoints share, if any; flow control measures one stage at a time."""
        prefill, decode = (bool(endpoints.gather(served).all()) for served in self._can_serve.of(endpoints))
        if prefill == decode or not len(endpoints):
            return None
        return "prefill" if prefill else "decode"


def _stages_served(pool: tuple[Endpoint, ...]) -> tuple[BoolArray, BoolArray]:
    roles = [endpoint.labels.get(ROLE_LABEL) or "" for endpoint in pool]
    if not any(roles):
        return np.ones(len(pool), np.bool_), np.ones(len(pool), np.bool_)
    decode = [not role or role in DecodeFilter.roles for role in roles]
    return np.array([role in PrefillFilter.roles for role in roles], np.bool_), np.array(decode, np.bool_)
