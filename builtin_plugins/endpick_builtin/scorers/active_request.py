"""`active-request-scorer`: prefer servers to which this picker has sent few requests that are still open."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    INFLIGHT_REQUESTS,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PluginMeta,
    Scorer,
    ScoringState,
    Subscriptions,
)


class ActiveRequestParameters(Parameters):
    """When an endpoint counts as idle, and how good a busy one can be."""

    idle_threshold: Annotated[
        int, Field(alias="idleThreshold", description="Up to this many open requests an endpoint counts as idle; below 0 means 0.")
    ] = 0
    max_busy_score: Annotated[
        float, Field(alias="maxBusyScore", description="Score a busy endpoint would have with no open request; outside 0..1 means 1.")
    ] = 1.0
    in_flight_load_producer_name: Annotated[
        str, Field(alias="inFlightLoadProducerName", description="Instance that counts the open requests; empty for the only one.")
    ] = ""
    request_timeout: Annotated[
        str | None, Field(alias="requestTimeout", description="Ignored, as in llm-d: requests end when they end.")
    ] = None


class ActiveRequestScorer(Scorer[ActiveRequestParameters]):
    """Prefer endpoints with few open requests of this picker's.

    score = 1 up to `idleThreshold` open requests, else (most - open) / most * `maxBusyScore`, where most is the largest number among the
    candidates. An endpoint nobody has counted for yet has no open request.
    """

    meta = PluginMeta(
        type="active-request-scorer",
        api=">=1.0,<2",
        parameters=ActiveRequestParameters,
        consumes=(INFLIGHT_REQUESTS,),
        category=Category.DISTRIBUTION,
    )

    @classmethod
    def subscriptions(cls, parameters: ActiveRequestParameters) -> Subscriptions:
        """The open requests, as the named producer counts them."""
        return Subscriptions((INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name),))

    def __init__(self, name: str, parameters: ActiveRequestParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._open = INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)
        self._idle = max(parameters.idle_threshold, 0)
        self._max_busy = parameters.max_busy_score if 0.0 <= parameters.max_busy_score <= 1.0 else 1.0

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        requests = np.fmax(endpoints[self._open], 0.0)
        most = requests.max()
        if most <= self._idle:
            return np.ones(len(endpoints))
        return np.where(requests <= self._idle, 1.0, (most - requests) / most * self._max_busy)
