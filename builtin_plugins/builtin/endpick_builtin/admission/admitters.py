"""`probabilistic-admitter` and `latency-slo-admitter`: which requests of negative priority are not served?"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    PREDICTED_TTFT,
    RUNNING_REQUESTS_SIZE,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
    WAITING_QUEUE_SIZE,
    Admitter,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
    Rejection,
    ScoringState,
    Subscriptions,
)
from endpick_builtin.admission.fullness import FullnessParameters, fullness, mean_fullness
from endpick_builtin.producers.latency_ledger import Objectives

SATURATED = "rejected-saturated"


class ProbabilisticAdmitterParameters(FullnessParameters):
    """How saturation becomes the probability of a refusal."""

    power: Annotated[float, Field(gt=0.0, description="Exponent of the saturation: the larger, the later refusals begin.")] = 5.0
    k: Annotated[float, Field(gt=0.0, description="Factor of the power: the larger, the sooner every request is refused.")] = 300.0


class ProbabilisticAdmitter(Admitter[ProbabilisticAdmitterParameters]):
    """Refuse requests of negative priority the more often, the fuller the candidates are.

    s = mean of max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold), in which an endpoint that has not reported counts as 1,
    one that reports no more as what it said last, and of four or more none for more than 1, or twice the median where that is more; a
    request is refused with 429 with probability min(s^power * k, 1). Others, and all while there are no candidates, are admitted.
    """

    consumes = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        """See the class."""
        if request.priority >= 0 or not len(endpoints):
            return None
        saturation = mean_fullness(fullness(endpoints, self.parameters))
        if self.context.random.random() >= self.probability(saturation):
            return None
        return Rejection("system saturated, sheddable request dropped", 429, SATURATED)

    def probability(self, saturation: float) -> float:
        """Of a refusal at this saturation, 0 or more."""
        try:
            return min(math.pow(saturation, self.parameters.power) * self.parameters.k, 1.0)
        except OverflowError:
            return 1.0


_COLD_USAGE = 0.02


class LatencySLOAdmitterParameters(Parameters):
    """Whose predictions are used."""

    latency_prediction_info_producer_name: Annotated[
        str, Field(alias="latencyPredictionInfoProducerName", description="Instance that predicts latencies; empty for the only one.")
    ] = ""


class LatencySLOAdmitter(Admitter[LatencySLOAdmitterParameters]):
    """Refuse a request of negative priority with 429 when no endpoint is expected to answer as fast as it asks.

    Asked for is what the headers `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms` say; without both, or without any prediction, the request
    is admitted. An endpoint will do when each headroom that was asked for is 0 or more, when it runs no request, or when its KV-cache
    usage is below 0.02; what it has not reported counts as neither.
    """

    consumes = (PREDICTED_TTFT, TTFT_HEADROOM, TPOT_HEADROOM, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)

    @classmethod
    def subscriptions(cls, parameters: LatencySLOAdmitterParameters) -> Subscriptions:
        """What the named producer predicts."""
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
        """See the class."""
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
