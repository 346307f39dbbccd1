"""`{{ cookiecutter.plugin_type }}`: prefers endpoints with a short waiting queue."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from endpick.api import (
    WAITING_QUEUE_SIZE,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    Scorer,
    ScoringState,
)
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the scorer."""

    cap: Annotated[int, Field(gt=0, description="Number of waiting requests at which an endpoint scores 0.")] = 128


class {{ cookiecutter.__class }}(Scorer[{{ cookiecutter.__parameters }}]):
    """Prefer short waiting queues: score = 1 - min(queue, cap) / cap. An endpoint that has not reported scores 0."""

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Score every endpoint from 0 (worst) to 1 (best)."""
        cap = self.parameters.cap
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE], nan=cap)
        return 1.0 - np.minimum(queue, cap) / cap
