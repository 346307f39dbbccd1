"""`kv-cache-utilization-scorer`: prefer servers with room in their KV cache."""

from __future__ import annotations

import numpy as np

from endpick.api import KV_CACHE_USAGE, Category, Endpoints, FloatArray, InferenceRequest, PluginMeta, Scorer, ScoringState


class KVCacheUtilizationScorer(Scorer):
    """Prefer endpoints with a free KV cache.

    score = 1 - usage. An endpoint that has not reported its usage scores 0.
    """

    meta = PluginMeta(type="kv-cache-utilization-scorer", api=">=1.0,<2", consumes=(KV_CACHE_USAGE,), category=Category.DISTRIBUTION)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return np.fmax(1.0 - endpoints[KV_CACHE_USAGE], 0.0)
