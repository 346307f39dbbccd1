"""`precise-prefix-cache-producer` and `precise-prefix-cache-scorer`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from endpick.api import (
    Category,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Scorer,
    ScoringState,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.data import AnyKey
from endpick.api.keys import (
    PREFIX_BLOCKS,
    PREFIX_CACHED_BLOCKS,
    PREFIX_HOST_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    PREFIX_MATCH_SHARE,
    TOKENIZED_PROMPT,
    PrefixBlocks,
    PromptTokens,
)
from endpick_kv_events.parameters import PrecisePrefixCacheParameters
from endpick_kv_events.prefix_cache import Lookup, PrecisePrefixCache, Sent

PREFILL_PROFILE = "prefill"


class PrecisePrefixCacheProducer(
    DataProducer[PrecisePrefixCacheParameters],
    PreRequest[PrecisePrefixCacheParameters],
    ResponseObserver[PrecisePrefixCacheParameters],
):
    """Counts the leading full blocks of the tokenized prompt that each candidate's engine reports as cached.

    match = floor(sum over leading blocks of the greatest weight among the tiers that hold the block); matches of several prompts add up.
    With `selfCheck` the match is multiplied by the endpoint's calibration. Without tokens, and for endpoints that have reported nothing,
    the match is 0.

    A block counts from `BlockStored` to `BlockRemoved`, and with `speculativeIndexing` for `speculativeTTL` after a request was sent.
    Missed messages are fetched from the replay port. If that fails, the endpoint's blocks are forgotten.
    """

    consumes: ClassVar[tuple[AnyKey, ...]] = (TOKENIZED_PROMPT,)
    produces: ClassVar[tuple[AnyKey, ...]] = (
        PREFIX_MATCH_BLOCKS,
        PREFIX_BLOCKS,
        PREFIX_CACHED_BLOCKS,
        PREFIX_HOST_BLOCKS,
        PREFIX_MATCH_SHARE,
    )

    def __init__(self, name: str, parameters: PrecisePrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._cache = PrecisePrefixCache(parameters, context)

    async def start(self) -> None:
        """Start to receive KV events.

        Raises:
            ConfigurationError: `zmqEndpoint` cannot be bound.
        """
        await self._cache.start()

    async def stop(self) -> None:
        """Stop receiving KV events."""
        await self._cache.stop()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Look the prompt up."""
        prompts: tuple[PromptTokens, ...] = state.get(TOKENIZED_PROMPT) or ()
        lookup = self._cache.look_up(request.model, prompts, request.cache_salt, endpoints)
        state.private["lookup"] = lookup
        total, matched = lookup.total, endpoints.gather(lookup.matched)
        state.put(PREFIX_BLOCKS, PrefixBlocks(total, self._cache.block_size_tokens, lookup.keys))
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, matched)
        state.put_column(PREFIX_CACHED_BLOCKS, endpoints, endpoints.gather(lookup.cached))
        state.put_column(PREFIX_HOST_BLOCKS, endpoints, endpoints.gather(lookup.beyond_device))
        state.put_column(PREFIX_MATCH_SHARE, endpoints, np.minimum(matched / max(total, 1), 1.0))

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Note the picked endpoints."""
        lookup = state.private.get("lookup")
        if not isinstance(lookup, Lookup) or not lookup.keys:
            return
        for profile in dict.fromkeys((result.primary, PREFILL_PROFILE)):
            run = result.runs.get(profile)
            if run is not None and run.picked is not None and len(run.picked):
                first = run.picked.take([0])
                role = PREFILL_PROFILE if profile == PREFILL_PROFILE else "decode"
                sent = self._cache.sent(lookup, first.members[0], role, float(first.gather(lookup.cached)[0]))
                if profile == result.primary:
                    state.private["sent"] = sent

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        """Drop the promise if the picked endpoint did not serve."""
        sent = state.private.get("sent")
        if isinstance(sent, Sent) and (head.endpoint is not sent.promise.endpoint or head.status != 200):
            del state.private["sent"]

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Compare the promise with the server's report."""
        sent = state.private.pop("sent", None)
        if isinstance(sent, Sent):
            self._cache.judge(sent, end)

    def endpoint_removed(self, name: str) -> None:
        """Forget the endpoint's blocks."""
        self._cache.forget(name)


class PrecisePrefixCacheScorer(Scorer[PrecisePrefixCacheParameters], PrecisePrefixCacheProducer):
    """Prefers endpoints whose engine has a long prefix of the prompt cached: score = match / full blocks of the prompt.

    Without parameters it uses the match of the configured `precise-prefix-cache-producer`, which the host adds if there is none. With
    parameters it is a producer itself. The score is 0 without tokens, and for endpoints that have reported nothing.
    """

    category = Category.AFFINITY
    consumes: ClassVar[tuple[AnyKey, ...]] = (PREFIX_MATCH_SHARE,)

    @classmethod
    def subscriptions(cls, parameters: PrecisePrefixCacheParameters) -> Subscriptions:
        """A producer's with parameters, else a scorer's."""
        if not parameters.model_fields_set:
            return Subscriptions(cls.consumes)
        return Subscriptions(PrecisePrefixCacheProducer.consumes, (), PrecisePrefixCacheProducer.produces)

    async def start(self) -> None:
        """Start to receive KV events, unless another instance does."""
        if self.parameters.model_fields_set:
            await super().start()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Look the prompt up, unless another instance does."""
        if self.parameters.model_fields_set:
            super().produce(request, endpoints, state)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """The share of the prompt's blocks that matched."""
        return np.fmax(state.column(PREFIX_MATCH_SHARE, endpoints), 0.0)
