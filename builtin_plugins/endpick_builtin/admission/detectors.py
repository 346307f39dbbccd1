"""`utilization-detector`: how full the pool is by queues and KV caches; also a filter that drops full endpoints."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    Duration,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    SaturationDetector,
    ScoringState,
)


class UtilizationParameters(Parameters):
    """What counts as full."""

    queue_depth_threshold: Annotated[
        int, Field(alias="queueDepthThreshold", gt=0, description="Waiting requests at which an endpoint is full.")
    ] = 5
    kv_cache_util_threshold: Annotated[
        float, Field(alias="kvCacheUtilThreshold", gt=0.0, le=1.0, description="KV-cache usage (0 to 1) at which an endpoint is full.")
    ] = 0.8
    metrics_staleness_threshold: Annotated[
        Duration,
        Field(alias="metricsStalenessThreshold", gt=0, description="Metrics older than this say nothing: the endpoint counts as full."),
    ] = 0.2
    headroom: Annotated[
        float, Field(ge=0.0, description="As a filter: how far above the thresholds an endpoint may be, as a share of them.")
    ] = 0.0


class UtilizationDetector(SaturationDetector[UtilizationParameters], Filter[UtilizationParameters]):
    """Rate each endpoint by the fuller of queue and KV cache.

    saturation = mean of max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold); an endpoint without fresh metrics counts as 1, and
    no endpoint at all is 1. As a filter it keeps endpoints with fresh metrics that are below both thresholds * (1 + headroom); when that
    leaves none, all. Of the two metrics one is enough.
    """

    consumes = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def __init__(self, name: str, parameters: UtilizationParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.metrics_staleness_threshold

    def saturation(self, endpoints: Endpoints) -> float:
        """See the class."""
        if not len(endpoints):
            return 1.0
        utilization = self._utilization(endpoints)
        return float(np.where(np.isnan(utilization), 1.0, utilization).mean())

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """See the class."""
        keep: BoolArray = self._utilization(endpoints) < 1.0 + self.parameters.headroom
        return keep if keep.any() else np.ones(len(endpoints), dtype=np.bool_)

    def _utilization(self, endpoints: Endpoints) -> FloatArray:
        """1 is full; NaN where nothing fresh is known."""
        queue = endpoints[WAITING_QUEUE_SIZE] / self.parameters.queue_depth_threshold
        usage = endpoints[KV_CACHE_USAGE] / self.parameters.kv_cache_util_threshold
        age = np.minimum(endpoints.age(WAITING_QUEUE_SIZE), endpoints.age(KV_CACHE_USAGE))
        return np.where(age <= self.parameters.metrics_staleness_threshold, np.fmax(queue, usage), np.nan)
