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
    """How long to go on."""

    attempts: Annotated[int, Field(ge=1, description="Profiles to try at most.")] = 2


class {{ cookiecutter.__class }}(ProfileHandler[{{ cookiecutter.__parameters }}]):
    """Run the profiles in the order of the configuration until one picks an endpoint, `attempts` of them at most."""

    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Mapping[str, ProfileRunResult],
        state: ScoringState,
    ) -> Sequence[str]:
        """Name the profile to run next; none ends the loop."""
        tried = len(results)
        if tried == self.parameters.attempts or any(run.picked is not None for run in results.values()):
            return ()
        return profiles[tried : tried + 1]

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> SchedulingResult:
        """Serve with what was picked, or say why nothing was."""
        for profile, run in results.items():
            if run.picked is not None:
                return SchedulingResult(profile, results, tuple(endpoint.address for endpoint in run.picked))
        return SchedulingResult.failed("; ".join(f"{profile}: {run.failure}" for profile, run in results.items()))
