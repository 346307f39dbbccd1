"""`silent-endpoint-screener`: excludes endpoints that stopped reporting metrics."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    CandidateFilter,
    Duration,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
)

_REPORTED = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)


class SilentEndpointParameters(Parameters):
    """The tolerated silence."""

    tolerance: Annotated[
        Duration, Field(gt=0, description="Silence after which an endpoint that used to report is no candidate any more.")
    ] = 2.0


class SilentEndpointScreener(CandidateFilter[SilentEndpointParameters]):
    """Excludes endpoints whose newest metric is older than `tolerance`.

    A dead model server keeps its last values, and those of an idle server look like the best choice: it would attract most of the traffic
    until discovery drops it. An endpoint that has never reported stays (scorers rate it low). If no endpoint would be left, all stay.
    """

    consumes_optional = _REPORTED

    def __init__(self, name: str, parameters: SilentEndpointParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.tolerance
        self._pool: object = None
        self._fresh_until = 0.0  # one metric is fresh on every endpoint of `_pool` until then

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        pool = endpoints.pool_members
        if pool is self._pool and self.context.clock() < self._fresh_until:
            return endpoints
        tolerance = self.parameters.tolerance
        newest = np.full(len(endpoints), np.inf)
        for key in _REPORTED:
            age = endpoints.age(key)
            oldest = age.max(initial=0.0)
            if oldest <= tolerance:  # one metric that is fresh everywhere is enough
                if len(endpoints) == len(pool):
                    self._pool, self._fresh_until = pool, self.context.clock() + (tolerance - oldest)
                return endpoints
            newest = np.minimum(newest, age)
        silent = (newest > tolerance) & (newest < np.inf)
        return ~silent if 0 < np.count_nonzero(silent) < len(endpoints) else endpoints
