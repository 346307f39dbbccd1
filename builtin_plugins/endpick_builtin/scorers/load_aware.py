"""`load-aware-scorer`: rate queues against a fixed length, not against one another."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    WAITING_QUEUE_SIZE,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PluginMeta,
    Scorer,
    ScoringState,
)

DEFAULT_THRESHOLD = 128


class LoadAwareParameters(Parameters):
    """What counts as overloaded."""

    threshold: Annotated[int, Field(description="Queue length from which on an endpoint scores 0; 0 and less mean 128, as in llm-d.")] = (
        DEFAULT_THRESHOLD
    )


class LoadAwareScorer(Scorer[LoadAwareParameters]):
    """Prefer endpoints whose queue is short against a threshold T.

    score = 0.5 * (1 - min(queue, T) / T), so an empty queue scores 0.5. An endpoint that has not reported its queue scores 0.
    """

    meta = PluginMeta(
        type="load-aware-scorer",
        api=">=1.0,<2",
        parameters=LoadAwareParameters,
        consumes=(WAITING_QUEUE_SIZE,),
        category=Category.DISTRIBUTION,
    )

    def __init__(self, name: str, parameters: LoadAwareParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._threshold = parameters.threshold if parameters.threshold > 0 else DEFAULT_THRESHOLD

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return np.fmax(0.5 - 0.5 / self._threshold * endpoints[WAITING_QUEUE_SIZE], 0.0)
