"""Deciders: whether a stage of a disaggregated request runs on a separate server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from endpick.api import DisaggregationDecider, Endpoints, InferenceRequest, Parameters, PluginContext, ScoringState, Subscriptions
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT


class AlwaysDisaggregate(DisaggregationDecider):
    """Always disaggregates."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        return True


class DisaggregateMultimodal(DisaggregationDecider):
    """Disaggregates prompts with an image, a video or audio. Requires a parsed body."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        return bool(request.prompt.media)


class PrefixBasedParameters(Parameters):
    """Thresholds in prompt tokens."""

    non_cached_tokens: Annotated[
        int,
        Field(
            alias="nonCachedTokens",
            ge=0,
            examples=[16],
            description="Prompt tokens that the decode endpoint lacks in its cache from which on the answer is yes; 0 always answers no.",
        ),
    ] = 0
    prompt_tokens: Annotated[
        int, Field(alias="promptTokens", ge=0, description="Shorter prompts are answered with no, whatever is cached; 0 sets no limit.")
    ] = 0


class DisaggregateUncached(DisaggregationDecider[PrefixBasedParameters]):
    """Disaggregates if the decode endpoint would have to compute many tokens of the prompt.

    Disaggregates iff tokens >= `promptTokens` and tokens - matched blocks * tokens per block >= `nonCachedTokens`. Tokens are those of all
    prompts of the request, from a token producer or estimated at four bytes each. Never disaggregates if `nonCachedTokens` is 0 (the
    default) or if no producer knows the endpoint's cache.
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
