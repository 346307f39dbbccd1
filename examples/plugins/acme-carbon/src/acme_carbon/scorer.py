"""`acme.carbon-scorer`: prefers endpoints where electricity is clean."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from endpick.api import (
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    Scorer,
    ScoringState,
)
from pydantic import Field

from acme_carbon.keys import CARBON_INTENSITY


class CarbonParameters(Parameters):
    """Where endpoints are."""

    label: Annotated[str, Field(min_length=1, description="Label with the zone of an endpoint.")] = (
        "topology.kubernetes.io/zone"
    )


class CarbonScorer(Scorer[CarbonParameters]):
    """Prefer zones with clean electricity: score = (dirtiest - intensity) / (dirtiest - cleanest) among the candidates.

    1 for all whose intensity is known when all are equally clean; 0 where it is unknown.
    """

    consumes = (CARBON_INTENSITY,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint; 1 is best, 0 is worst."""
        zones, label = endpoints.pool(CARBON_INTENSITY) or {}, self.parameters.label
        intensity: FloatArray = np.array([zones.get(endpoint.labels.get(label, ""), np.nan) for endpoint in endpoints])
        unknown = np.isnan(intensity)
        if unknown.all():
            return np.zeros(len(endpoints))
        dirtiest, cleanest = float(np.nanmax(intensity)), float(np.nanmin(intensity))
        if dirtiest == cleanest:
            return np.where(unknown, 0.0, 1.0)
        return np.nan_to_num((dirtiest - intensity) / (dirtiest - cleanest), nan=0.0)
