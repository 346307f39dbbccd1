"""`{{ cookiecutter.plugin_type }}`: runs the next scheduling profile if one finds no endpoint."""

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
    """The number of attempts."""

    attempts: Annotated[int, Field(ge=1, description="Profiles to try at most.")] = 2


class {{ cookiecutter.__class }}(ProfileHandler[{{ cookiecutter.__parameters }}]):
    """Runs at most `attempts` profiles, in the order of the configuration, until one picks an endpoint."""

    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Mapping[str, ProfileRunResult],
        state: ScoringState,
    ) -> Sequence[str]:
        """Choose the next profile; none ends the loop."""
        tried = len(results)
        if tried == self.parameters.attempts or any(run.picked is not None for run in results.values()):
            return ()
        return profiles[tried : tried + 1]

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> SchedulingResult:
        """Use the picked endpoint, or give the reason for a refusal."""
        for profile, run in results.items():
            if run.picked is not None:
                return SchedulingResult(profile, results, tuple(endpoint.address for endpoint in run.picked))
        return SchedulingResult.failed("; ".join(f"{profile}: {run.failure}" for profile, run in results.items()))
