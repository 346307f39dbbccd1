"""How full endpoints are by their queues and KV caches: for the detector and the admitter that judge by both."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoints, FloatArray, Parameters

_TELL_WHAT_IS_USUAL = 4
"""So many endpoints do: of three, one is a third of the pool."""


class FullnessParameters(Parameters):
    """What counts as full."""

    queue_depth_threshold: Annotated[
        int, Field(alias="queueDepthThreshold", gt=0, description="Waiting requests at which an endpoint is full.")
    ] = 5
    kv_cache_util_threshold: Annotated[
        float, Field(alias="kvCacheUtilThreshold", gt=0.0, le=1.0, description="KV-cache usage (0 to 1) at which an endpoint is full.")
    ] = 0.8


def fullness(endpoints: Endpoints, parameters: FullnessParameters) -> FloatArray:
    """max(queue / queueDepthThreshold, usage / kvCacheUtilThreshold) of each endpoint; NaN where neither has been reported.

    A value below 0, which no model server means, counts as 0.
    """
    queue = endpoints[WAITING_QUEUE_SIZE] / parameters.queue_depth_threshold
    usage = endpoints[KV_CACHE_USAGE] / parameters.kv_cache_util_threshold
    larger: FloatArray = np.fmax(queue, usage)
    return np.maximum(larger, 0.0)  # which keeps NaN


def mean_fullness(values: FloatArray) -> float:
    """The mean, in which an endpoint of which nothing is known counts as full; 1 for no endpoints.

    Of four endpoints or more none counts for more than a full one, or twice the median where that is more: one that reports a queue of
    thousands would have the whole pool full, and no request go to any of the others.
    """
    if not len(values):
        return 1.0
    known = np.where(np.isnan(values), 1.0, values)
    if len(known) >= _TELL_WHAT_IS_USUAL:
        known = np.minimum(known, max(1.0, 2.0 * float(np.median(known))))
    return float(known.mean())
