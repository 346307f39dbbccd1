"""`running-requests-size-scorer`: prefer servers that work on few requests."""

from __future__ import annotations

from endpick.api import RUNNING_REQUESTS_SIZE, Category, Endpoints, FloatArray, InferenceRequest, PluginMeta, Scorer, ScoringState
from endpick_builtin.scorers.spread import smaller_is_better


class RunningRequestsScorer(Scorer):
    """Prefer endpoints that run few requests.

    score = (most - running) / (most - fewest) among the candidates; 1 for all when all run equally many. An endpoint that has not
    reported scores 0.
    """

    meta = PluginMeta(
        type="running-requests-size-scorer", api=">=1.0,<2", consumes=(RUNNING_REQUESTS_SIZE,), category=Category.DISTRIBUTION
    )

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return smaller_is_better(endpoints[RUNNING_REQUESTS_SIZE])
