"""`concurrency-detector`: saturation by the load this endpick has sent; also a filter of full endpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    BoolArray,
    DataKey,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    SaturationDetector,
    ScoringState,
    Subscriptions,
)
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS


class ConcurrencyMode(StrEnum):
    """The load to count."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    HYBRID = "hybrid"


class ConcurrencyParameters(Parameters):
    """Capacity of an endpoint."""

    max_concurrency: Annotated[
        int, Field(alias="maxConcurrency", gt=0, description="Requests in flight at which an endpoint is full: `requests`, `hybrid`.")
    ] = 100
    max_token_concurrency: Annotated[
        int,
        Field(alias="maxTokenConcurrency", gt=0, description="Tokens in flight at which an endpoint is full: `tokens`, `hybrid`."),
    ] = 1_000_000
    headroom: Annotated[
        float, Field(ge=0.0, le=1e6, description="As a filter: how far above its capacity an endpoint may be, as a share of it.")
    ] = 0.0
    concurrency_mode: Annotated[
        ConcurrencyMode,
        Field(alias="concurrencyMode", description="Load to count: `requests`, `tokens`, or the higher ratio of both: `hybrid`."),
    ] = ConcurrencyMode.REQUESTS
    in_flight_load_producer_name: Annotated[
        str, Field(alias="inFlightLoadProducerName", description="Instance that counts the load in flight; empty for the only one.")
    ] = ""

    def limits(self) -> tuple[tuple[DataKey[float], int], ...]:
        """The columns to compare, each with the capacity of an endpoint."""
        requests = INFLIGHT_REQUESTS.from_producer(self.in_flight_load_producer_name), self.max_concurrency
        tokens = INFLIGHT_TOKENS.from_producer(self.in_flight_load_producer_name), self.max_token_concurrency
        match self.concurrency_mode:
            case ConcurrencyMode.REQUESTS:
                return (requests,)
            case ConcurrencyMode.TOKENS:
                return (tokens,)
            case ConcurrencyMode.HYBRID:
                return (requests, tokens)


class ConcurrencyDetector(SaturationDetector[ConcurrencyParameters], Filter[ConcurrencyParameters]):
    """Rates endpoints by the requests or tokens that this endpick has in flight there.

    saturation = total load / total capacity for `requests` and `tokens`; for `hybrid` the mean over endpoints of the larger ratio; 1
    without endpoints. As a filter it keeps endpoints with a load below floor(capacity * (1 + headroom)), for `hybrid` both loads. If none
    is left, the request is refused with 429. An endpoint that was sent nothing has a load of 0. Counts are local to the process and never
    stale.
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
    """The load of each endpoint; 0 if nothing was counted."""
    load: FloatArray = np.fmax(endpoints[key], 0.0)
    return load
