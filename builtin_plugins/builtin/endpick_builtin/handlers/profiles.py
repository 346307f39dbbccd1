"""Handlers that run one profile per request, and the prefill/decode handler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from typing_extensions import TypeVar

from endpick.api import (
    CycleState,
    DisaggregationDecider,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    ProfileHandler,
    ProfileRunResult,
    RefersTo,
    SchedulingResult,
    Stability,
    UpstreamHeaders,
)
from endpick.api.keys import PEER_ENDPOINT
from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.handlers.outcome import (
    ADDRESS,
    DATA_PARALLEL_HEADER,
    STAGE_HEADERS,
    Decisions,
    addresses,
    at_port,
    foreign_headers,
    picked_by,
    stage_headers,
)

P = TypeVar("P", bound=Parameters, default=Parameters)

_SEVERAL = "single profile handler is intended to be used with a single profile, failed to process multiple profiles"


class OneRunHandler(ProfileHandler[P]):
    """Base of handlers that run one profile; its pick serves the request."""

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        return () if results else profiles

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


class DataParallelParameters(CamelParameters):
    """Sets the port of the sidecar."""

    primary_port: Annotated[
        int, Field(ge=1, le=65535, description="Port on which the sidecar of every host listens for all its ranks.")
    ] = 8000


class DataParallelProfileHandler(OneRunHandler[DataParallelParameters]):
    """Runs the only profile and sends the request to the sidecar on the host of the picked rank.

    destination = host of the pick : `primaryPort`; `x-data-parallel-host-port` = the first pick, which selects the rank. Not needed if the
    gateway can route to several ports of a host.
    """

    most_profiles = 1

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        result = super().process_results(request, results, state)
        if result.failure:
            return result
        picked = results[result.primary].picked
        assert picked is not None
        headers = {DATA_PARALLEL_HEADER: addresses(picked)[0]}
        return SchedulingResult(result.primary, results, at_port(picked, self.parameters.primary_port), headers)


class HeaderProfileParameters(CamelParameters):
    """Names the header that selects the profile, and the profile to use without it."""

    header_name: Annotated[
        str, Field(min_length=1, description="Header that names the scheduling profile. Its name is case-insensitive.")
    ] = "x-llm-d-epp-profile"
    default_profile: Annotated[str, Field(min_length=1, description="Profile of a request without the header, or with an empty one.")] = (
        "decode"
    )


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


_READ_BY_THE_DECIDER = "the decider selects the matches it reads"


class PdParameters(CamelParameters):
    """Names the profile of each stage, and the decider."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"deciderPluginName": "always-disagg-pd-decider"}]})

    decode_profile: Annotated[str, Field(min_length=1, description="Profile that finds the endpoint that decodes.")] = "decode"
    prefill_profile: Annotated[str, Field(min_length=1, description="Profile that finds the endpoint that prefills.")] = "prefill"
    decider: Annotated[
        str,
        RefersTo(DisaggregationDecider),
        Field(alias="deciderPluginName", min_length=1, description="Instance that decides about prefill."),
    ] = "prefix-based-pd-decider"
    primary_port: Annotated[
        int, Field(ge=0, le=65535, description="As that of `data-parallel-profile-handler`; 0: the port of the pick itself.")
    ] = 0
    prefix_plugin_type: Annotated[str | None, ignored("prefixPluginType", _READ_BY_THE_DECIDER)] = None
    prefix_plugin_name: Annotated[str | None, ignored("prefixPluginName", _READ_BY_THE_DECIDER)] = None


class PdProfileHandler(ProfileHandler[PdParameters]):
    """Runs decode, then prefill if the decider agrees. Needs `disagg-headers-handler` to set the headers.

    Without a pick of decode the request gets 429; without one of prefill, the decode server does its work. `llm_d_epp_pd_decision_total`
    counts decisions.
    """

    produces = (PEER_ENDPOINT,)
    stability = Stability.DEPRECATED
    replaced_by = "disagg-profile-handler"

    @classmethod
    def required_profiles(cls, parameters: PdParameters) -> tuple[str, ...]:
        return (parameters.decode_profile,)

    @classmethod
    def optional_profiles(cls, parameters: PdParameters) -> tuple[str, ...]:
        return (parameters.prefill_profile,)

    def __init__(self, name: str, parameters: PdParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._decider = context.instance(parameters.decider, DisaggregationDecider)
        self._decisions = Decisions("llm_d_epp_pd_decision_total", context.registry)

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        decode, prefill = self.parameters.decode_profile, self.parameters.prefill_profile
        if decode not in results:
            return (decode,)
        picked = picked_by(results, decode)
        if picked is None or prefill in results or prefill not in profiles:
            return ()
        state.put(PEER_ENDPOINT, picked.members[0])
        return (prefill,) if self._decider.disaggregate(request, picked.take([0]), state) else ()

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        decode, port = picked_by(results, self.parameters.decode_profile), self.parameters.primary_port
        if decode is None:
            return SchedulingResult.failed("failed to find available decode workers")
        prefill = picked_by(results, self.parameters.prefill_profile)
        self._decisions.count(request.model, prefill=prefill is not None, encode=False)
        if not port:
            return SchedulingResult(self.parameters.decode_profile, results, addresses(decode))
        headers = {DATA_PARALLEL_HEADER: addresses(decode)[0]}
        return SchedulingResult(self.parameters.decode_profile, results, at_port(decode, port), headers)


class DisaggHeadersParameters(CamelParameters):
    """Names the profiles whose picks are sent in headers."""

    prefill_profile: Annotated[str, Field(min_length=1, description="Prefill profile; its first pick is used.")] = "prefill"
    encode_profile: Annotated[str, Field(min_length=1, description="Encode profile; all its picks are used.")] = "encode"


class DisaggHeadersHandler(PreRequest[DisaggHeadersParameters]):
    """Sets the headers that name the other stages, for handlers that do not set them.

    `x-prefiller-host-port` = first pick of `prefillProfile`, `x-encoder-hosts-ports` = all picks of `encodeProfile`; removed without a
    pick.
    """

    aliases = ("prefill-header-handler",)
    stability = Stability.DEPRECATED
    replaced_by = "disagg-profile-handler"

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        parameters = self.parameters
        stages = stage_headers(picked_by(result.runs, parameters.prefill_profile), picked_by(result.runs, parameters.encode_profile))
        for name, value in stages.items():
            headers.set(name, value)
        for name in foreign_headers(request, STAGE_HEADERS, stages):
            headers.remove(name)
