"""`utilization-filter`: drops busy endpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    DataKey,
    Endpoints,
    Filter,
    InferenceRequest,
    Parameters,
    PluginContext,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick.api.keys import INFLIGHT_REQUESTS


def kept_or_all(mask: BoolArray, endpoints: Endpoints, *, fall_back: bool) -> BoolArray | Endpoints:
    """The mask, or all endpoints if it is empty and `fall_back` is set."""
    return endpoints if fall_back and not np.count_nonzero(mask) else mask


class Metric(StrEnum):
    """The metric of a condition."""

    ACTIVE_REQUESTS = "active-requests"
    RUNNING_REQUESTS = "running-requests"
    WAITING_QUEUE = "waiting-queue"
    KV_CACHE_UTILIZATION = "kv-cache-utilization"


_KEYS = {
    Metric.ACTIVE_REQUESTS: INFLIGHT_REQUESTS,
    Metric.RUNNING_REQUESTS: RUNNING_REQUESTS_SIZE,
    Metric.WAITING_QUEUE: WAITING_QUEUE_SIZE,
    Metric.KV_CACHE_UTILIZATION: KV_CACHE_USAGE,
}


class Condition(BaseModel):
    """A metric and its maximum."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: Annotated[
        Metric,
        Field(
            description="`active-requests` (open requests of this picker's), `running-requests`, `waiting-queue` or `kv-cache-utilization`."
        ),
    ]
    max_value: Annotated[
        float, Field(alias="maxValue", ge=0.0, allow_inf_nan=False, description="Largest value that is kept; 0 to 1 for the KV cache.")
    ]

    @model_validator(mode="after")
    def _is_a_share(self) -> Self:
        if self.metric is Metric.KV_CACHE_UTILIZATION and self.max_value > 1.0:
            raise ValueError(f"maxValue of {self.metric} is a share, at most 1, not {self.max_value:g}")
        return self


class UtilizationFilterParameters(Parameters):
    """The conditions of an endpoint that is not too busy."""

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
    fallback_on_empty: Annotated[
        bool, Field(alias="fallbackOnEmpty", description="Keep all endpoints when the conditions would leave none.")
    ] = False
    in_flight_load_producer_name: Annotated[
        str, Field(alias="inFlightLoadProducerName", description="Instance that counts the open requests; empty for the only one.")
    ] = ""

    def limits(self) -> tuple[tuple[DataKey[float], float], ...]:
        """The column and maximum of each condition."""
        producer = self.in_flight_load_producer_name
        return tuple(
            (key.from_producer(producer) if key is INFLIGHT_REQUESTS else key, condition.max_value)
            for key, condition in ((_KEYS[condition.metric], condition) for condition in self.conditions)
        )


class UtilizationFilter(Filter[UtilizationFilterParameters]):
    """Keeps endpoints with every metric at most `maxValue`.

    A metric that was never reported excludes nothing, as in llm-d, which reads 0. A metric keeps its last value;
    `silent-endpoint-screener` excludes endpoints that stopped reporting. If no endpoint is left, the profile picks nothing or, with
    `fallbackOnEmpty`, chooses among all.
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
