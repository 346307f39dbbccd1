"""`acme.cost-picker`: picks the cheapest of the endpoints that are about as good as the best."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from endpick.api import (
    Endpoint,
    Endpoints,
    InferenceRequest,
    Parameters,
    Picker,
    ScoredEndpoints,
    ScoringState,
)
from pydantic import Field


class CostParameters(Parameters):
    """What an endpoint costs, and how much worse a cheap one may be."""

    label: Annotated[
        str, Field(min_length=1, description="Label with what an endpoint costs, a number in any unit.")
    ] = "cost"
    tolerance: Annotated[
        float, Field(ge=0, le=1, description="Share of the best total that may be given up for a lower cost.")
    ] = 0.1


class CostPicker(Picker[CostParameters]):
    """Pick the cheapest endpoint with a total of at least (1 - tolerance) * best; other such endpoints are fallbacks.

    At equal cost the better rated comes first. An endpoint whose label is missing or no number is the dearest.
    """

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """Choose at least one endpoint, cheapest first."""
        good = np.flatnonzero(scored.scores >= (1 - self.parameters.tolerance) * scored.scores.max())
        costs = np.array([self._cost_of(endpoint) for endpoint in scored.take(good)])
        return scored.take(good[np.lexsort((-scored.scores[good], costs))])

    def _cost_of(self, endpoint: Endpoint) -> float:
        try:
            cost = float(endpoint.labels[self.parameters.label])
        except (KeyError, ValueError):
            return math.inf
        return math.inf if math.isnan(cost) else cost
