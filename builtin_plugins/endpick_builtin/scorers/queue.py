"""`queue-scorer`: prefer short waiting queues."""

from __future__ import annotations

from endpick.api import WAITING_QUEUE_SIZE, Category, Endpoints, FloatArray, InferenceRequest, PluginMeta, Scorer, ScoringState
from endpick_builtin.scorers.spread import smaller_is_better


class QueueScorer(Scorer):
    """Prefer endpoints where few requests wait.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all when all queues are equally long. An endpoint that
    has not reported its queue scores 0.
    """

    meta = PluginMeta(type="queue-scorer", api=">=1.0,<2", consumes=(WAITING_QUEUE_SIZE,), category=Category.DISTRIBUTION)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return smaller_is_better(endpoints[WAITING_QUEUE_SIZE])
