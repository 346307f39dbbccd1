"""`{{ cookiecutter.plugin_type }}`: prefers endpoints with short queues."""

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
    """The queue length that scores 0."""

    cap: Annotated[int, Field(gt=0, description="Waiting requests from which on an endpoint scores 0.")] = 128


class {{ cookiecutter.__class }}(Scorer[{{ cookiecutter.__parameters }}]):
    """Prefers short waiting queues: score = 1 - min(queue, cap) / cap. Endpoints that have not reported score 0."""

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint; 1 is best, 0 is worst."""
        cap = self.parameters.cap
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE], nan=cap)
        return 1.0 - np.minimum(queue, cap) / cap
