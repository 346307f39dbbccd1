"""`{{ cookiecutter.plugin_type }}`: runs the next scheduling profile when one finds no endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from endpick.api import (
    InferenceRequest,
    Parameters,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
    ScoringState,
)
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the handler."""

    attempts: Annotated[int, Field(ge=1, description="Maximum number of profiles to try.")] = 2


class {{ cookiecutter.__class }}(ProfileHandler[{{ cookiecutter.__parameters }}]):
    """Run at most `attempts` profiles, in the order of the configuration, until one picks an endpoint."""

    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Mapping[str, ProfileRunResult],
        state: ScoringState,
    ) -> Sequence[str]:
        """Return the next profile to run, or none to end the loop."""
        tried = len(results)
        if tried == self.parameters.attempts or any(run.picked is not None for run in results.values()):
            return ()
        return profiles[tried : tried + 1]

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> SchedulingResult:
        """Return the picked endpoints, or the reason why there are none."""
        for profile, run in results.items():
            if run.picked is not None:
                return SchedulingResult(profile, results, tuple(endpoint.address for endpoint in run.picked))
        return SchedulingResult.failed("; ".join(f"{profile}: {run.failure}" for profile, run in results.items()))
