"""`precise-prefix-cache-producer`: knows what each prefix cache holds from the KV events of the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from endpick.api import (
    PREFIX_BLOCKS,
    PREFIX_CACHED_BLOCKS,
    PREFIX_HOST_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    PREFIX_MATCH_SHARE,
    TOKENIZED_PROMPT,
    CycleState,
    DataProducer,
    Endpoints,
    InferenceRequest,
    PluginContext,
    PrefixBlocks,
    PreRequest,
    PromptTokens,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    UpstreamHeaders,
)
from endpick.api.data import AnyKey
from endpick_builtin.producers.precise.parameters import PrecisePrefixCacheParameters
from endpick_builtin.producers.precise.prefix_cache import Lookup, PrecisePrefixCache
from endpick_builtin.producers.self_check import Promise

PREFILL_PROFILE = "prefill"


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request that is being answered, and what was promised of where it went."""

    lookup: Lookup
    promise: Promise


class PrecisePrefixCacheProducer(
    DataProducer[PrecisePrefixCacheParameters],
    PreRequest[PrecisePrefixCacheParameters],
    ResponseObserver[PrecisePrefixCacheParameters],
):
    """Count, for each candidate, the leading full blocks of the tokenized prompt that its engine says it holds.

    match = floor(sum over the leading blocks of the greatest weight among the tiers that hold the block), of several prompts their sum;
    times the endpoint's calibration where `selfCheck` is on (see `self_check`). A block counts from the engine's `BlockStored` to its
    `BlockRemoved`, and with `speculativeIndexing` also for `speculativeTTL` after a request was sent. Without tokens, and for an endpoint
    that has reported nothing, the match is 0. The pool is looked at with every request and every second. Messages that are missing are
    fetched from the replay port; where that fails, all that is known of the endpoint is forgotten. Without a replay port it is kept.
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
        """Listen to the engines.

        Raises:
            ConfigurationError: `zmqEndpoint` cannot be listened on.
        """
        await self._cache.start()

    async def stop(self) -> None:
        """Listen no more."""
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
        """Note where the request goes, and what is promised of it."""
        lookup = state.private.get("lookup")
        if not isinstance(lookup, Lookup) or not lookup.keys:
            return
        for profile in dict.fromkeys((result.primary, PREFILL_PROFILE)):
            run = result.runs.get(profile)
            if run is not None and run.picked is not None and len(run.picked):
                first = run.picked.take([0])
                endpoint, cached = first.members[0], float(first.gather(lookup.cached)[0])
                if profile == result.primary:
                    promise = self._cache.promise(lookup, endpoint, cached)
                    if promise is not None:
                        state.private["sent"] = _Sent(lookup, promise)
                self._cache.sent(lookup, endpoint, PREFILL_PROFILE if profile == PREFILL_PROFILE else "decode", cached)

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        """Another endpoint than the picked one may have served; a prefill elsewhere leaves its server little to find."""
        sent = state.private.get("sent")
        if isinstance(sent, _Sent) and (head.endpoint is not sent.promise.endpoint or head.status != 200):
            state.private["elsewhere"] = True

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Hold the promise against the server's report."""
        sent = state.private.pop("sent", None)
        if isinstance(sent, _Sent):
            self._cache.judge(sent.promise, sent.lookup, end, comparable="elsewhere" not in state.private)

    def endpoint_removed(self, name: str) -> None:
        """Forget what it held."""
        self._cache.forget(name)

    def learnt_bytes(self) -> int:
        """What the index takes."""
        return self._cache.learnt_bytes()

    def forget_some(self) -> bool:
        """Of each endpoint, the half of its blocks that has been known for longest, in parts; their removal is not noticed then."""
        return self._cache.forget_some()
