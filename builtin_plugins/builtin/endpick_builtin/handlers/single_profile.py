"""`single-profile-handler` and `data-parallel-profile-handler`: handlers that run the only profile, and the base of all that run one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field
from typing_extensions import TypeVar

from endpick.api import (
    CycleState,
    InferenceRequest,
    Parameters,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
)
from endpick_builtin.handlers.outcome import ADDRESS, DATA_PARALLEL_HEADER, addresses, at_port

P = TypeVar("P", bound=Parameters, default=Parameters)

_SEVERAL = "single profile handler is intended to be used with a single profile, failed to process multiple profiles"


class OneRunHandler(ProfileHandler[P]):
    """Base of the handlers that run one profile: its pick serves the request."""

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        """The one pick."""
        if len(results) != 1:
            return SchedulingResult.failed(_SEVERAL)
        ((name, run),) = results.items()
        if run.picked is None:
            return SchedulingResult.failed(f"failed to run scheduler profile '{name}'")
        return SchedulingResult(name, results, tuple(map(ADDRESS, run.picked.members)))


class SingleProfileHandler(OneRunHandler):
    """Run the only profile; its pick serves the request. Without a pick the request is refused with 429."""

    most_profiles = 1
    ignores_parameters = True

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        """All profiles at first, then none."""
        return () if results else profiles


class DataParallelParameters(Parameters):
    """Where the proxy of a host listens."""

    primary_port: Annotated[
        int,
        Field(alias="primaryPort", ge=1, le=65535, description="Port on which the sidecar of every host listens for all its ranks."),
    ] = 8000


class DataParallelProfileHandler(OneRunHandler[DataParallelParameters]):
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
        result = super().process_results(request, results, state)
        if result.failure:
            return result
        picked = results[result.primary].picked
        assert picked is not None
        headers = {DATA_PARALLEL_HEADER: addresses(picked)[0]}
        return SchedulingResult(result.primary, results, at_port(picked, self.parameters.primary_port), headers)
