"""`single-profile-handler` and `data-parallel-profile-handler`: handlers that run the only profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from endpick.api import (
    CycleState,
    InferenceRequest,
    Parameters,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
    ScoringState,
)
from endpick_builtin.handlers.outcome import DATA_PARALLEL_HEADER, addresses, at_port, only_run


class SingleProfileHandler(ProfileHandler):
    """Run the only profile; its pick serves the request. Without a pick the request is refused with 429."""

    most_profiles = 1
    ignores_parameters = True

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: ScoringState
    ) -> Sequence[str]:
        """All profiles at first, then none."""
        return () if results else profiles

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: ScoringState) -> SchedulingResult:
        """The one pick."""
        return only_run(results)


class DataParallelParameters(Parameters):
    """Where the proxy of a host listens."""

    primary_port: Annotated[
        int,
        Field(alias="primaryPort", ge=1, le=65535, description="Port on which the sidecar of every host listens for all its ranks."),
    ] = 8000


class DataParallelProfileHandler(ProfileHandler[DataParallelParameters]):
    """Run the only profile, and send the request to the sidecar of the picked rank's host.

    destination = host of the pick : `primaryPort`; `x-data-parallel-host-port` = address of the pick, by which the sidecar finds the rank.
    Fallbacks keep their hosts and get the same port; the header names the first pick only, as in llm-d. Gateways that can route to several
    ports of a host need none of this.
    """

    most_profiles = 1

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        """All profiles at first, then none."""
        return () if results else profiles

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        """The one pick, at the sidecar's port."""
        result = only_run(results)
        if result.failure:
            return result
        picked = results[result.primary].picked
        assert picked is not None
        headers = {DATA_PARALLEL_HEADER: addresses(picked)[0]}
        return SchedulingResult(result.primary, results, at_port(picked, self.parameters.primary_port), headers)
