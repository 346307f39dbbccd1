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
    PluginContext,
    SaturationDetector,
    ScoringState,
)
from endpick.api.fast_metrics import Levels
from endpick_builtin.admission.fullness import FullnessParameters, fullness, mean_fullness

_LOG_SECONDS = 30.0


class UtilizationParameters(FullnessParameters):
    """What counts as full, and as stale."""

    metrics_staleness_threshold: Annotated[
        Duration,
        Field(alias="metricsStalenessThreshold", gt=0, description="Metrics older than this say nothing: the endpoint counts as full."),
    ] = 0.2
    headroom: Annotated[
        float, Field(ge=0.0, description="As a filter: how far above the thresholds an endpoint may be, as a share of them.")
    ] = 0.0


class UtilizationDetector(SaturationDetector[UtilizationParameters], Filter[UtilizationParameters]):
    """Rate each endpoint by the fuller of queue and KV cache.

    saturation = mean of max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold); an endpoint without fresh metrics counts as 1, of
    four or more none for more than 1, or twice the median where that is more, and no endpoint at all is 1. As a filter it keeps endpoints
    with fresh metrics that are below both thresholds * (1 + headroom); when that leaves none, all. Of the two metrics one is enough. The
    gauge `llm_d_epp_flow_control_stale_endpoints` says how many endpoints had no fresh metrics when it was last asked.
    """

    consumes_optional = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def __init__(self, name: str, parameters: UtilizationParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.metrics_staleness_threshold
        told = "Endpoints without fresh metrics when the detector was last asked."
        self._stale = Levels("llm_d_epp_flow_control_stale_endpoints", told, ("detector",), context.registry).labels(name)
        self._logged_at = -_LOG_SECONDS
        if parameters.headroom > 1.0:
            context.logger.warning("headroom %g lets endpoints be more than twice as full as the thresholds say", parameters.headroom)

    def saturation(self, endpoints: Endpoints) -> float:
        """See the class."""
        return mean_fullness(self._utilization(endpoints))

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """See the class."""
        keep: BoolArray = self._utilization(endpoints) < 1.0 + self.parameters.headroom
        return keep if keep.any() else np.ones(len(endpoints), dtype=np.bool_)

    def _utilization(self, endpoints: Endpoints) -> FloatArray:
        """1 is full; NaN where nothing fresh is known."""
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
        """Twice a minute at most."""
        now = self.context.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            self.context.logger.warning(
                "%d of %d endpoints have no metrics younger than %g s and count as full; metricsStalenessThreshold is the limit",
                stale,
                endpoints,
                self.parameters.metrics_staleness_threshold,
            )
