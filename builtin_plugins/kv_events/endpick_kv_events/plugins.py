"""`precise-prefix-cache-producer` and `-scorer`: match prompts with engine-reported blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from endpick.api import (
    Category,
    CycleState,
    DataProducer,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    RowArray,
    SchedulingResult,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
    TerminationCause,
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
from endpick_builtin.producers.self_check import Finding, Promise, SelfCheck
from endpick_kv_events.block_index import DEFAULT_TIER, SPECULATIVE, BlockKeys, Extras, Speculation, TierIndex
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.intake import KvIntake
from endpick_kv_events.parameters import PrecisePrefixCacheParameters
from endpick_kv_events.stream import KvMetrics

MAX_NEW_TOKENS: Final = 32 * 1024  # hashed with FNV per request, in 20 ms
MAX_SPECULATED_BLOCKS: Final = 2048  # per request, of those that no endpoint holds
_BLOCKS_PER_CHECK: Final = 16


@dataclass(frozen=True, slots=True)
class Lookup:
    """Matches of one request, per endpoint of the pool.

    `total` counts full blocks of all prompts. `matched` is weighted, rounded down and calibrated. `cached` counts leading blocks in any
    tier, `beyond_device` those in tiers other than device memory.
    """

    total: int
    keys: tuple[int, ...]
    matched: FloatArray
    cached: FloatArray
    beyond_device: FloatArray


@dataclass(frozen=True, slots=True)
class Sent:
    """A request in flight, and `EngineBlocks.stores` when it was sent."""

    lookup: Lookup
    promise: Promise
    stores: int


class PrecisePrefixCache:
    """The block index of one plugin instance, with its intake of KV events."""

    def __init__(self, parameters: PrecisePrefixCacheParameters, context: PluginContext) -> None:
        processor, indexer = parameters.token_processor, parameters.indexer
        self._context = context
        self._keys = BlockKeys(processor.tokens_per_block, processor.hash_algorithm, processor.hash_seed)
        self._capacity = indexer.block_index.blocks_per_endpoint
        self._index = TierIndex(indexer.weights)
        self._speculation = Speculation(self._index, parameters.speculative_ttl) if parameters.speculative_indexing else None
        self._check = SelfCheck(context.registry) if parameters.self_check else None
        self._metrics = KvMetrics(
            context.registry,
            lambda: self._intake.subscribers if self._intake else 0,
            lambda: self._index.size,
            lambda: self._intake.held if self._intake else 0,
        )
        self._intake = (
            KvIntake(parameters.kv_events, self._new_blocks, self._metrics, context.logger) if parameters.kv_events.in_use else None
        )
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)

    @property
    def block_size_tokens(self) -> int:
        return self._keys.block_size_tokens

    async def start(self) -> None:
        columns = self._context.columns
        if self._intake is not None and columns is not None:
            await self._intake.start(columns.endpoints)

    async def stop(self) -> None:
        if self._intake is not None:
            await self._intake.stop()

    def look_up(self, model: str, prompts: Sequence[PromptTokens], cache_salt: str, endpoints: Endpoints) -> Lookup:
        """Match prompts with the index; matches of several prompts add up."""
        began = self._context.clock()
        if self._speculation is not None:
            self._speculation.expire(began)
        slots, root = self._slots(endpoints), self._keys.root(model)
        worth, cached, beyond = (np.zeros(len(slots)) for _ in range(3))
        keys: list[int] = []
        speculated = MAX_SPECULATED_BLOCKS if self._speculation is not None else 0
        total, max_new = 0, self._keys.new_tokens + MAX_NEW_TOKENS
        for prompt in prompts:
            total += len(prompt.token_ids) // self.block_size_tokens
            if self._keys.new_tokens > max_new:
                continue
            chain: list[int] = []
            for key in self._keys.walk(root, prompt.token_ids, block_extras(prompt, cache_salt, self.block_size_tokens)):
                chain.append(key)
                if not self._index.is_held(key):
                    if not speculated:
                        break  # nothing behind a block without holders can match
                    speculated -= 1
                if not len(chain) % _BLOCKS_PER_CHECK and self._keys.new_tokens > max_new:
                    break
            found = self._index.match(chain)
            worth += found.weighted[slots]
            cached += found.blocks[slots]
            for tier, blocks in found.by_tier.items():
                if tier not in (DEFAULT_TIER, SPECULATIVE):
                    beyond += blocks[slots]
            keys += chain
        matched = np.floor(worth + 1e-9)
        if self._check is not None:
            matched = matched * self._check.factors(endpoints.pool_members)
        if total:
            self._metrics.looked_up(float(cached.max(initial=0.0)), self._context.clock() - began)
        return Lookup(total, tuple(keys), matched, cached, beyond)

    def sent(self, lookup: Lookup, endpoint: Endpoint, role: str, cached: float) -> Sent | None:
        """Record the endpoint of a request; returns the argument of `judge`, None without `selfCheck`."""
        self._metrics.sent(role, cached * self.block_size_tokens, lookup.total * self.block_size_tokens)
        if self._speculation is not None:
            self._speculation.add(self._index.slot(endpoint.name), lookup.keys, self._context.clock())
        if self._check is None:
            return None
        blocks = self._blocks_of(endpoint)
        return Sent(lookup, Promise(endpoint, cached, lookup.total), 0 if blocks is None else blocks.stores)

    def judge(self, sent: Sent, end: ResponseEnd) -> None:
        """Compare the match with the server's report, and drop disproved blocks."""
        promise, blocks = sent.promise, self._blocks_of(sent.promise.endpoint)
        if self._check is None or end.cause is not TerminationCause.NATURAL or end.usage is None:
            return
        if self._check.judge(promise, end.usage) is not Finding.KEPT and blocks is not None:
            wrong = sent.lookup.keys[promise.found_blocks(end.usage) : int(promise.matched)]
            self._check.purged(promise.endpoint, blocks.disprove(wrong, sent.stores))

    def size(self) -> int:
        return self._index.size

    def forget(self, name: str) -> None:
        if self._speculation is not None:
            self._speculation.forget(self._index.slot(name))
        if self._intake is not None:
            self._intake.remove(name)
        if self._check is not None:
            self._check.forget(name)
        self._index.release(name)
        self._pool = None

    def _blocks_of(self, endpoint: Endpoint) -> EngineBlocks | None:
        return None if self._intake is None else self._intake.blocks_of(endpoint.name)

    def _new_blocks(self, name: str) -> EngineBlocks:
        return EngineBlocks(self._index, self._index.slot(name), self._keys, self._capacity)

    def _slots(self, endpoints: Endpoints) -> RowArray:
        members = endpoints.pool_members
        if members is not self._pool:
            if self._intake is not None:
                self._intake.follow(members)
            self._slot_of_member = self._index.slots(member.name for member in members)
            self._pool = members
        return self._slot_of_member


def block_extras(prompt: PromptTokens, cache_salt: str, block_size_tokens: int) -> Extras:
    """Return the media that overlap each full block, in order; the first block also has the salt."""
    blocks = len(prompt.token_ids) // block_size_tokens
    if not blocks or not (prompt.media or cache_salt):
        return ()
    found: list[list[str]] = [[] for _ in range(blocks)]
    for media in sorted(prompt.media, key=lambda place: place.offset):
        last = (media.offset + max(media.length, 1) - 1) // block_size_tokens
        for number in range(media.offset // block_size_tokens, min(last + 1, blocks)):
            found[number].append(media.identifier)
    if cache_salt:
        found[0].append(cache_salt)
    return [tuple(block) for block in found]


PREFILL_PROFILE = "prefill"


class PrecisePrefixCacheProducer(
    DataProducer[PrecisePrefixCacheParameters],
    PreRequest[PrecisePrefixCacheParameters],
    ResponseObserver[PrecisePrefixCacheParameters],
):
    """Counts the leading full blocks of the tokenized prompt that each candidate's engine reports as cached.

    match = floor(sum over leading blocks of the greatest weight among the tiers that hold the block), added up over prompts, with
    `selfCheck` times the endpoint's calibration; 0 without tokens or a report.

    A block counts from `BlockStored` to `BlockRemoved`, and with `speculativeIndexing` for `speculativeTTL` after a request was sent.
    Missed messages come from the replay port; if that fails, the endpoint's blocks are forgotten.
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
        await self._cache.start()

    async def stop(self) -> None:
        await self._cache.stop()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
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
        sent = state.private.get("sent")
        if isinstance(sent, Sent) and (head.endpoint is not sent.promise.endpoint or head.status != 200):
            del state.private["sent"]

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        sent = state.private.pop("sent", None)
        if isinstance(sent, Sent):
            self._cache.judge(sent, end)

    def dump_state(self) -> object:
        return {"blockSizeTokens": self._cache.block_size_tokens, "total": self._cache.size()}

    def endpoint_removed(self, name: str) -> None:
        self._cache.forget(name)


class PrecisePrefixCacheScorer(Scorer[PrecisePrefixCacheParameters], PrecisePrefixCacheProducer):
    """Prefers endpoints whose engine has a long prefix of the prompt cached: score = match / full blocks of the prompt.

    Without parameters it uses the match of the configured `precise-prefix-cache-producer`, which the host adds if there is none; with
    parameters it is a producer itself. The score is 0 without tokens or a report.
    """

    category = Category.AFFINITY
    stability = Stability.DEPRECATED
    replaced_by = "prefix-cache-scorer"
    consumes: ClassVar[tuple[AnyKey, ...]] = (PREFIX_MATCH_SHARE,)

    @classmethod
    def subscriptions(cls, parameters: PrecisePrefixCacheParameters) -> Subscriptions:
        if not parameters.model_fields_set:
            return Subscriptions(cls.consumes)
        return Subscriptions(PrecisePrefixCacheProducer.consumes, (), PrecisePrefixCacheProducer.produces)

    async def start(self) -> None:
        if self.parameters.model_fields_set:
            await super().start()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        if self.parameters.model_fields_set:
            super().produce(request, endpoints, state)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return np.fmax(state.column(PREFIX_MATCH_SHARE, endpoints), 0.0)
