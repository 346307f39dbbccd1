"""`disagg-profile-handler`, one profile per stage of a request, and its deciders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from endpick.api import (
    CycleState,
    DisaggregationDecider,
    Endpoints,
    InferenceRequest,
    PluginContext,
    ProfileHandler,
    ProfileRunResult,
    RefersTo,
    SchedulingResult,
    ScoringState,
    Subscriptions,
)
from endpick.api.keys import PEER_ENDPOINT, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.handlers.outcome import STAGE_HEADERS, Decisions, Runs, addresses, foreign_headers, picked_by, stage_headers


class AlwaysDisaggregate(DisaggregationDecider):
    """Disaggregates every request."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        return True


class DisaggregateMultimodal(DisaggregationDecider):
    """Disaggregates prompts with an image, a video or audio. Requires a parsed body."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        return bool(request.prompt.media)


class PrefixBasedParameters(CamelParameters):
    """Sets the numbers of prompt tokens from which a request is disaggregated."""

    non_cached_tokens: Annotated[
        int,
        Field(
            ge=0,
            examples=[16],
            description="Prompt tokens that the decode endpoint lacks in its cache from which on the answer is yes; 0 always answers no.",
        ),
    ] = 0
    prompt_tokens: Annotated[int, Field(ge=0, description="Shorter prompts are answered with no, whatever is cached; 0 sets no limit.")] = 0


class DisaggregateUncached(DisaggregationDecider[PrefixBasedParameters]):
    """Disaggregates if the decode endpoint would have to compute many tokens of the prompt.

    Condition: tokens >= `promptTokens` and tokens - matched blocks * tokens per block >= `nonCachedTokens` > 0. Tokens come from a token
    producer, or are bytes / 4. Never if the endpoint's cache is unknown.
    """

    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (TOKENIZED_PROMPT,)

    @classmethod
    def subscriptions(cls, parameters: PrefixBasedParameters) -> Subscriptions:
        return Subscriptions(cls.consumes, cls.consumes_optional) if parameters.non_cached_tokens else Subscriptions()

    def __init__(self, name: str, parameters: PrefixBasedParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        if not parameters.non_cached_tokens:
            context.logger.warning("nonCachedTokens is 0, so that nothing is disaggregated: set it to the tokens that are worth a transfer")

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        least = self.parameters.non_cached_tokens
        blocks = state.get(PREFIX_BLOCKS) if least else None
        if blocks is None:
            return False
        prompts = state.get(TOKENIZED_PROMPT)
        tokens = request.prompt.estimated_tokens if prompts is None else sum(len(prompt.token_ids) for prompt in prompts)
        if tokens < max(least, self.parameters.prompt_tokens):
            return False
        matched = float(state.column(PREFIX_MATCH_BLOCKS, endpoint)[0])
        return tokens - matched * blocks.block_size_tokens >= least


DECODE, PREFILL, ENCODE = "decode", "prefill", "encode"


class StageProfiles(CamelParameters):
    """Names the scheduling profile of each stage."""

    decode: Annotated[str, Field(min_length=1, description="Profile that finds the endpoint that decodes.")] = DECODE
    prefill: Annotated[str, Field(min_length=1, description="Profile that finds the endpoint that prefills.")] = PREFILL
    encode: Annotated[str, Field(min_length=1, description="Profile that finds the endpoints that encode media.")] = ENCODE


_Decider = Annotated[str | None, RefersTo(DisaggregationDecider)]


class StageDeciders(CamelParameters):
    """Names the deciders of the optional stages."""

    prefill: Annotated[_Decider, Field(description="Instance that decides about prefill; none: never.")] = None
    encode: Annotated[_Decider, Field(description="Instance that decides about encode; none: never.")] = None


def _former(alias: str, successor: str) -> object:
    return Field(alias=alias, description=f"The former name of `{successor}`.", json_schema_extra={"deprecated": True})


_Profile = str | None


class DisaggParameters(CamelParameters):
    """Sets the stages, their order and their deciders; also accepts the flat format."""

    stage_order: Annotated[
        Literal["decode-first", "prefill-first"],
        Field(
            description="`decode-first`: decode picks, then its decider chooses whether prefill runs. "
            "`prefill-first`: prefill picks for every request, then decode."
        ),
    ] = "decode-first"
    profiles: Annotated[StageProfiles | None, Field(description="The scheduling profile of each stage.")] = None
    deciders: Annotated[
        StageDeciders | None,
        Field(
            description="Who decides about prefill and encode.",
            examples=[{"encode": "always-disagg-multimodal-decider", "prefill": "prefix-based-pd-decider"}],
        ),
    ] = None
    decode_profile: Annotated[_Profile, _former("decodeProfile", "profiles.decode")] = None
    prefill_profile: Annotated[_Profile, _former("prefillProfile", "profiles.prefill")] = None
    encode_profile: Annotated[_Profile, _former("encodeProfile", "profiles.encode")] = None
    prefill_decider: Annotated[_Decider, _former("prefillDeciderPluginName", "deciders.prefill")] = None
    encode_decider: Annotated[_Decider, _former("encodeDeciderPluginName", "deciders.encode")] = None
    decider: Annotated[_Decider, _former("deciderPluginName", "deciders.prefill")] = None

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        former = {
            "decodeProfile": self.decode_profile,
            "prefillProfile": self.prefill_profile,
            "encodeProfile": self.encode_profile,
            "prefillDeciderPluginName": self.prefill_decider,
            "encodeDeciderPluginName": self.encode_decider,
            "deciderPluginName": self.decider,
        }
        given = [name for name, value in former.items() if value is not None]
        if given and (self.profiles is not None or self.deciders is not None):
            raise ValueError(f"{', '.join(given)} cannot be mixed with profiles and deciders: move them there")
        return self

    @model_validator(mode="after")
    def _prefill_first_has_no_prefill_decider(self) -> Self:
        if self.stage_order == "prefill-first" and self.decider_names.prefill:
            raise ValueError("stageOrder prefill-first runs prefill for every request: remove deciders.prefill")
        return self

    @property
    def profile_names(self) -> StageProfiles:
        former = {DECODE: self.decode_profile, PREFILL: self.prefill_profile, ENCODE: self.encode_profile}
        return self.profiles or StageProfiles(**{stage: name for stage, name in former.items() if name})

    @property
    def decider_names(self) -> StageDeciders:
        return self.deciders or StageDeciders(prefill=self.prefill_decider or self.decider, encode=self.encode_decider)


class DisaggProfileHandler(ProfileHandler[DisaggParameters]):
    """Runs the stages of a request on separate servers: decode always, encode and prefill by decision.

    `decode-first`: decode, then encode and prefill if their deciders agree. `prefill-first`: prefill, decode, then encode if its decider
    agrees. Decode's pick serves the request. `x-prefiller-host-port` names the first pick of prefill, `x-encoder-hosts-ports` all picks of
    encode; the client's are removed. Later profiles find the first stage's pick under `peer-endpoint`.

    Without a pick of decode the request gets 429. If another stage has no pick or profile, or its decider fails, the decode server does its
    work. `llm_d_epp_disagg_decision_total` counts decisions.
    """

    produces = (PEER_ENDPOINT,)

    @classmethod
    def required_profiles(cls, parameters: DisaggParameters) -> tuple[str, ...]:
        names = parameters.profile_names
        return (names.decode,) if parameters.stage_order == "decode-first" else (names.decode, names.prefill)

    @classmethod
    def optional_profiles(cls, parameters: DisaggParameters) -> tuple[str, ...]:
        names, deciders = parameters.profile_names, parameters.decider_names
        return tuple(name for name, decider in ((names.prefill, deciders.prefill), (names.encode, deciders.encode)) if decider)

    def __init__(self, name: str, parameters: DisaggParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._names = parameters.profile_names
        deciders = parameters.decider_names
        self._prefill = context.instance(deciders.prefill, DisaggregationDecider) if deciders.prefill else None
        self._encode = context.instance(deciders.encode, DisaggregationDecider) if deciders.encode else None
        self._prefill_first = parameters.stage_order == "prefill-first"
        self._decisions = Decisions("llm_d_epp_disagg_decision_total", context.registry)

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        names = self._names
        if self._prefill_first and names.prefill not in results:
            return (names.prefill,)
        if names.decode not in results:
            self._publish(picked_by(results, names.prefill), state)
            return (names.decode,)
        decode = picked_by(results, names.decode)
        if decode is None:
            return ()
        if not self._prefill_first:
            if names.prefill in results:
                return ()
            self._publish(decode, state)
        if self._wants(self._encode, names.encode, request, profiles, results, decode, state):
            return (names.encode,)
        if self._wants(self._prefill, names.prefill, request, profiles, results, decode, state):
            return (names.prefill,)
        return ()

    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        decode = picked_by(results, self._names.decode)
        if decode is None:
            return SchedulingResult.failed("failed to find available decode workers")
        prefill, encode = picked_by(results, self._names.prefill), picked_by(results, self._names.encode)
        self._decisions.count(request.model, prefill=prefill is not None, encode=encode is not None)
        headers = stage_headers(prefill, encode)
        removed = foreign_headers(request, STAGE_HEADERS, headers)
        return SchedulingResult(self._names.decode, results, addresses(decode), headers, removed_headers=removed)

    @staticmethod
    def _publish(picked: Endpoints | None, state: CycleState) -> None:
        if picked is not None:
            state.put(PEER_ENDPOINT, picked.members[0])

    @staticmethod
    def _wants(
        decider: DisaggregationDecider | None,
        profile: str,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Runs,
        decode: Endpoints,
        state: CycleState,
    ) -> bool:
        if decider is None or profile in results or profile not in profiles:
            return False
        return decider.disaggregate(request, decode.take([0]), state)
