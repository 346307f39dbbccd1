"""`single-profile-handler`: one scheduling profile, and its pick is the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from endpick.api import InferenceRequest, PluginMeta, ProfileHandler, ProfileRunResult, SchedulingResult, ScoringState


class SingleProfileHandler(ProfileHandler):
    """Run the only profile; its pick serves the request."""

    meta = PluginMeta(type="single-profile-handler", api=">=1.0,<2")

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> Sequence[str]:
        """All profiles at first, then none."""
        return () if results else profiles

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> SchedulingResult | str:
        """The one pick."""
        if len(results) != 1:
            return "single profile handler is intended to be used with a single profile, failed to process multiple profiles"
        ((name, run),) = results.items()
        if run.picked is None:
            return f"failed to run scheduler profile '{name}'"
        return SchedulingResult(name, results, tuple([endpoint.address for endpoint in run.picked]))
