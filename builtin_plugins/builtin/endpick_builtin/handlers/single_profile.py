"""Handlers that run one profile per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field
from typing_extensions import TypeVar

from endpick.api import (
    CycleState,
    InferenceRequest,
    Parameters,
    PluginContext,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
    Stability,
)
from endpick_builtin.handlers.outcome import ADDRESS, DATA_PARALLEL_HEADER, addresses, at_port

P = TypeVar("P", bound=Parameters, default=Parameters)

_SEVERAL = "single profile handler is intended to be used with a single profile, failed to process multiple profiles"


class OneRunHandler(ProfileHandler[P]):
    """Base of handlers that run one profile; its pick serves the request."""

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        if len(results) != 1:
            return SchedulingResult.failed(_SEVERAL)
        ((name, run),) = results.items()
        if run.picked is None:
            return SchedulingResult.failed(f"failed to run scheduler profile '{name}'")
        return SchedulingResult(name, results, tuple(map(ADDRESS, run.picked.members)))


class SingleProfileHandler(OneRunHandler):
    """Runs the only profile; its pick serves the request. Without a pick the request is refused with 429."""

    most_profiles = 1
    ignores_parameters = True

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        return () if results else profiles


class DataParallelParameters(Parameters):
    """The port of the sidecar."""

    primary_port: Annotated[
        int,
        Field(alias="primaryPort", ge=1, le=65535, description="Port on which the sidecar of every host listens for all its ranks."),
    ] = 8000


class DataParallelProfileHandler(OneRunHandler[DataParallelParameters]):
    """Runs the only profile and sends the request to the sidecar on the host of the picked rank.

    destination = host of the pick : `primaryPort`; `x-data-parallel-host-port` = the first pick, which selects the rank. Not needed if the
    gateway can route to several ports of a host.
    """

    most_profiles = 1

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        return () if results else profiles

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        result = super().process_results(request, results, state)
        if result.failure:
            return result
        picked = results[result.primary].picked
        assert picked is not None
        headers = {DATA_PARALLEL_HEADER: addresses(picked)[0]}
        return SchedulingResult(result.primary, results, at_port(picked, self.parameters.primary_port), headers)


class HeaderProfileParameters(Parameters):
    """The header and its default."""

    header_name: Annotated[
        str,
        Field(
            alias="headerName",
            min_length=1,
            description="Header that names the scheduling profile. Its name is case-insensitive.",
        ),
    ] = "EPP-Profile"
    default_profile: Annotated[
        str,
        Field(alias="defaultProfile", min_length=1, description="Profile of a request without the header, or with an empty one."),
    ] = "decode"


class HeaderProfileHandler(OneRunHandler[HeaderProfileParameters]):
    """Runs the profile named by a header, or `defaultProfile` without the header.

    A single profile always runs. An unknown name is refused with 429, as in llm-d.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HeaderProfileParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._header = parameters.header_name.lower()

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        if results:
            return ()
        if len(profiles) == 1:
            return profiles
        named = request.headers.get(self._header) or self.parameters.default_profile
        return (named,) if named in profiles else ()
