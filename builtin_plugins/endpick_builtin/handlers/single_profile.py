"""`single-profile-handler`: runs the only profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from endpick.api import InferenceRequest, ProfileHandler, ProfileRunResult, SchedulingResult, ScoringState

_ADDRESS = attrgetter("address")


class SingleProfileHandler(ProfileHandler):
    """Run the only profile; its pick serves the request."""

    most_profiles = 1

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> Sequence[str]:
        """All profiles at first, then none."""
        return () if results else profiles

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState) -> SchedulingResult:
        """The one pick."""
        if len(results) != 1:
            return SchedulingResult.failed(
                "single profile handler is intended to be used with a single profile, failed to process multiple profiles"
            )
        ((name, run),) = results.items()
        if run.picked is None:
            return SchedulingResult.failed(f"failed to run scheduler profile '{name}'")
        return SchedulingResult(name, results, tuple(map(_ADDRESS, run.picked.members)))
