"""`{{ cookiecutter.plugin_type }}`: drops endpoints with long queues."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from endpick.api import (
    WAITING_QUEUE_SIZE,
    BoolArray,
    Endpoints,
    Filter,
    InferenceRequest,
    Parameters,
    ScoringState,
)
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """The longest acceptable queue."""

    limit: Annotated[int, Field(ge=0, description="Longest waiting queue that is acceptable, in requests.")] = 16


class {{ cookiecutter.__class }}(Filter[{{ cookiecutter.__parameters }}]):
    """Keeps endpoints with at most `limit` waiting requests, and endpoints that have not reported their queue.

    Keeps none when all queues are too long; the profile run then fails and the profile handler decides.
    """

    consumes = (WAITING_QUEUE_SIZE,)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """Mask of the endpoints that may serve the request."""
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE], nan=0.0)
        return queue <= self.parameters.limit
