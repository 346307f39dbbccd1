"""`{{ cookiecutter.plugin_type }}`: picks the best of a few endpoints drawn at random."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Endpoints, InferenceRequest, Parameters, Picker, ScoredEndpoints, ScoringState
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the picker."""

    choices: Annotated[int, Field(ge=1, description="Endpoints drawn for each request.")] = 2


class {{ cookiecutter.__class }}(Picker[{{ cookiecutter.__parameters }}]):
    """Draw `choices` endpoints and pick the one with the best score; the others are fallbacks, best first.

    Replicas with the same scores do not all pick the same endpoint (the power of two choices).
    """

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """Return at least one endpoint, best first."""
        positions = range(len(scored.endpoints))
        drawn = self.context.random.sample(positions, min(self.parameters.choices, len(positions)))
        return scored.take(sorted(drawn, key=lambda position: -scored.scores[position]))
