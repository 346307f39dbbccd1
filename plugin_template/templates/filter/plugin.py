"""`{{ cookiecutter.plugin_type }}`: drops endpoints with a long waiting queue."""

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
    """Parameters of the filter."""

    limit: Annotated[int, Field(ge=0, description="Longest acceptable queue, in requests.")] = 16


class {{ cookiecutter.__class }}(Filter[{{ cookiecutter.__parameters }}]):
    """Keep endpoints with at most `limit` waiting requests, and those that have not reported.

    If all queues are too long it keeps none; the profile run then fails and the profile handler decides.
    """

    consumes = (WAITING_QUEUE_SIZE,)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """Return a mask of the endpoints that may serve the request."""
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE], nan=0.0)
        return queue <= self.parameters.limit
