"""A scheduling profile, compiled: filters narrow the candidates, scorers rate them, a picker chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import ProfileRunResult, ScoredEndpoints
from endpick.api.state import ScoringState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.filtering import FilterStep, apply_filters, filter_step
from endpick.scheduling.picking import PickerStep, pick, picker_step
from endpick.scheduling.scoring import Scoring, compile_scoring
from endpick.scheduling.step import Fault

NO_ENDPOINTS = "no endpoints available for the given request"


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything one profile run calls, in order."""

    name: str
    filters: tuple[FilterStep, ...]
    scoring: Scoring
    picker: PickerStep

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        """Filter, rate, pick. Never raises: a run that came to nothing says why in `failure`."""
        candidates = apply_filters(self.filters, request, endpoints, state, access)
        if isinstance(candidates, Fault):
            return self._failed(candidates)
        if not len(candidates):
            return ProfileRunResult(self.name, None, failure=NO_ENDPOINTS)
        scores = self.scoring.rate(request, candidates, state, access)
        if isinstance(scores, Fault):
            return self._failed(scores)
        scored = ScoredEndpoints(candidates, self.scoring.total(scores))
        picked = pick(self.picker, request, scored, state, access)
        if isinstance(picked, Fault):
            return self._failed(picked, scored)
        return ProfileRunResult(self.name, picked, scored)

    def _failed(self, fault: Fault, scored: ScoredEndpoints | None = None) -> ProfileRunResult:
        return ProfileRunResult(self.name, None, scored, failure=str(fault), fault=True)


def compile_profile(
    name: str, filters: Sequence[Instance], scorers: Sequence[tuple[Instance, float]], picker: Instance, instruments: Instruments
) -> Profile:
    """Bind the instances' methods once, for all runs. Raises TypeError when one is not of its slot's kind: a mistake in the plan."""
    return Profile(
        name,
        tuple(filter_step(instance, instruments) for instance in filters),
        compile_scoring(scorers, instruments),
        picker_step(picker, instruments),
    )
