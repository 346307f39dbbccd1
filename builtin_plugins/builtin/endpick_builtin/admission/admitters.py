"""Admitters by load and predicted latency, and `silent-endpoint-screener`."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    Admitter,
    BoolArray,
    CandidateFilter,
    Duration,
    Endpoints,
    InferenceRequest,
    PluginContext,
    Rejection,
    ScoringState,
    Subscriptions,
)
from endpick.api.keys import PREDICTED_TTFT, TPOT_HEADROOM, TTFT_HEADROOM
from endpick_builtin.admission.detectors import FullnessParameters, fullness, mean_fullness
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.latency_ledger import Objectives

_REPORTED = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)


class SilentEndpointParameters(CamelParameters):
    """Sets how long an endpoint may go without new metrics before it is excluded."""

    tolerance: Annotated[
        Duration, Field(gt=0, description="Silence after which an endpoint that used to report is no candidate any more.")
    ] = 2.0


class SilentEndpointScreener(CandidateFilter[SilentEndpointParameters]):
    """Excludes endpoints whose newest metric is older than `tolerance`.

    A dead server's last values look idle and attract traffic. Endpoints that never reported stay, and all stay if none would be left.
    """

    consumes_optional = _REPORTED

    def __init__(self, name: str, parameters: SilentEndpointParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.tolerance
        self._pool: object = None
        self._fresh_until = 0.0  # until then, one metric is fresh on every endpoint

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        pool = endpoints.pool_members
        if pool is self._pool and self.context.clock() < self._fresh_until:
            return endpoints
        tolerance = self.parameters.tolerance
        newest = np.full(len(endpoints), np.inf)
        for key in _REPORTED:
            age = endpoints.age(key)
            oldest = age.max(initial=0.0)
            if oldest <= tolerance:
                if len(endpoints) == len(pool):
                    self._pool, self._fresh_until = pool, self.context.clock() + (tolerance - oldest)
                return endpoints
            newest = np.minimum(newest, age)
        silent = (newest > tolerance) & (newest < np.inf)
        return ~silent if 0 < np.count_nonzero(silent) < len(endpoints) else endpoints


SATURATED = "rejected-saturated"


class ProbabilisticAdmitterParameters(FullnessParameters):
    """Shapes the curve that maps saturation to the probability of a refusal."""

    power: Annotated[float, Field(gt=0.0, description="Exponent of the saturation: the larger, the later refusals begin.")] = 5.0
    k: Annotated[float, Field(gt=0.0, description="Factor of the power: the larger, the sooner every request is refused.")] = 300.0


class ProbabilisticAdmitter(Admitter[ProbabilisticAdmitterParameters]):
    """Refuses requests of negative priority with 429 with probability min(s^power * k, 1).

    s = mean of max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold), 1 for endpoints that never reported. From four endpoints on,
    each counts at most max(1, 2 * median).
    """

    consumes = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        if request.priority >= 0 or not len(endpoints):
            return None
        saturation = mean_fullness(fullness(endpoints, self.parameters))
        if self.context.random.random() >= self.probability(saturation):
            return None
        return Rejection("system saturated, sheddable request dropped", 429, SATURATED)

    def probability(self, saturation: float) -> float:
        try:
            return min(math.pow(saturation, self.parameters.power) * self.parameters.k, 1.0)
        except OverflowError:
            return 1.0


_COLD_USAGE = 0.02


class LatencySLOAdmitterParameters(CamelParameters):
    """Names the producer whose latency predictions the admitter reads."""

    latency_prediction_info_producer_name: Annotated[
        str, Field(description="Instance that predicts latencies; empty for the only one.")
    ] = ""


class LatencySLOAdmitter(Admitter[LatencySLOAdmitterParameters]):
    """Refuses a request of negative priority with 429 if no endpoint is expected to meet its latency objectives.

    Objectives: headers `x-llm-d-slo-ttft-ms`, `x-llm-d-slo-tpot-ms`. Without either, or without any prediction, the request is admitted. An
    endpoint suffices if every requested headroom is >= 0, it is idle, or its KV-cache usage is below 0.02.
    """

    consumes = (PREDICTED_TTFT, TTFT_HEADROOM, TPOT_HEADROOM, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)

    @classmethod
    def subscriptions(cls, parameters: LatencySLOAdmitterParameters) -> Subscriptions:
        producer = parameters.latency_prediction_info_producer_name
        predicted = tuple(key.from_producer(producer) for key in (PREDICTED_TTFT, TTFT_HEADROOM, TPOT_HEADROOM))
        return Subscriptions((*predicted, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE))

    def __init__(self, name: str, parameters: LatencySLOAdmitterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        producer = parameters.latency_prediction_info_producer_name
        self._predicted = PREDICTED_TTFT.from_producer(producer)
        self._ttft_headroom = TTFT_HEADROOM.from_producer(producer)
        self._tpot_headroom = TPOT_HEADROOM.from_producer(producer)

    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        if request.priority >= 0:
            return None
        predicted = state.column(self._predicted, endpoints)
        will_do = (endpoints[RUNNING_REQUESTS_SIZE] == 0.0) | (endpoints[KV_CACHE_USAGE] < _COLD_USAGE)
        in_time = ~np.isnan(predicted)
        objectives = Objectives.of(request.headers)
        for objective, headroom in (
            (objectives.ttft, state.column(self._ttft_headroom, endpoints)),
            (objectives.tpot, state.column(self._tpot_headroom, endpoints)),
        ):
            if objective:
                in_time &= headroom >= 0.0
        if not (objectives.ttft or objectives.tpot) or np.isnan(predicted).all() or (will_do | in_time).any():
            return None
        return Rejection("no valid endpoint available to serve the request", 429, SATURATED)
