"""Deciders: whether a stage of a disaggregated request is worth a server of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from endpick.api import (
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    DisaggregationDecider,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
    ScoringState,
    Subscriptions,
)


class AlwaysDisaggregate(DisaggregationDecider):
    """Say yes to every request."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """Yes."""
        return True


class DisaggregateMultimodal(DisaggregationDecider):
    """Say yes to requests whose prompt has an image, a video or a sound. A request whose body was not read has none."""

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """See the class."""
        return bool(request.prompt.media)


class PrefixBasedParameters(Parameters):
    """From which prompts on a prefill elsewhere is worth the transfer."""

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
    """Say yes when the decode endpoint would have to compute many tokens of the prompt.

    yes iff tokens >= `promptTokens` and tokens >= `nonCachedTokens` and tokens - matched blocks * tokens per block >= `nonCachedTokens`,
    with the tokens of all prompts of the request: as counted by a token producer, or four bytes each where there is none. Says no while
    `nonCachedTokens` is 0, which is the default, and when no producer knows what the endpoint has cached.
    """

    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (TOKENIZED_PROMPT,)

    @classmethod
    def subscriptions(cls, parameters: PrefixBasedParameters) -> Subscriptions:
        """None for an instance that always answers no."""
        return Subscriptions(cls.consumes, cls.consumes_optional) if parameters.non_cached_tokens else Subscriptions()

    def __init__(self, name: str, parameters: PrefixBasedParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        if not parameters.non_cached_tokens:
            context.logger.warning("nonCachedTokens is 0, so that nothing is disaggregated: set it to the tokens that are worth a transfer")

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """See the class."""
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
