"""What a request finds in the caches of the endpoints, as their engines report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from endpick.api import Endpoint, Endpoints, FloatArray, Limits, PluginContext, PromptTokens, ResponseEnd, RowArray, TerminationCause
from endpick_builtin.producers.precise.block_keys import BlockKeys, Extras
from endpick_builtin.producers.precise.engine_blocks import EngineBlocks
from endpick_builtin.producers.precise.kv_intake import KvIntake
from endpick_builtin.producers.precise.limits import KV_LIMITS, MANY_MADE, MANY_RESTORED, MANY_SPECULATED
from endpick_builtin.producers.precise.metrics import KvMetrics
from endpick_builtin.producers.precise.parameters import BYTES_PER_BLOCK, PrecisePrefixCacheParameters
from endpick_builtin.producers.precise.speculation import Speculation
from endpick_builtin.producers.precise.tier_index import DEFAULT_TIER, SPECULATIVE, TierIndex
from endpick_builtin.producers.self_check import Finding, Promise, SelfCheck

_FORGOTTEN_AT_ONCE: Final = 5000
"""Blocks: they take some milliseconds."""

_BYTES_PER_TOKEN: Final = 4
"""Of what keys are made of."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What became of one request; arrays have one entry for each endpoint of the pool.

    Attributes:
        total: Full blocks of all its prompts.
        keys: Of the blocks that were looked up: each prompt's up to the first that no endpoint holds, and further where they are speculated
            on.
        matched: Worth of the leading blocks that the endpoint holds, rounded down, times its calibration.
        cached: How many those are, whatever their tier.
        beyond_device: How many of them are in a tier beside the device's memory.
    """

    total: int
    keys: tuple[int, ...]
    matched: FloatArray
    cached: FloatArray
    beyond_device: FloatArray


class PrecisePrefixCache:
    """The index of one instance, with all that feeds it."""

    def __init__(self, parameters: PrecisePrefixCacheParameters, context: PluginContext) -> None:
        processor, index = parameters.token_processor, parameters.indexer
        self._context = context
        self._keys = BlockKeys(processor.tokens_per_block, processor.hash_algorithm, processor.hash_seed)
        self._capacity = index.block_index.blocks_per_endpoint
        self._index = TierIndex(index.weights, index.max_tiers)
        self._most_made_bytes = _BYTES_PER_TOKEN * processor.max_new_tokens
        self._most_speculated = parameters.max_speculated_blocks if parameters.speculative_indexing else 0
        self._most_restored = parameters.max_stored_blocks
        self._speculation = Speculation(self._index, parameters.speculative_ttl) if parameters.speculative_indexing else None
        self._intake = (
            KvIntake(parameters.kv_events, self._new_blocks, lambda: self._metrics, context.logger) if parameters.kv_events.in_use else None
        )
        self._metrics = KvMetrics(
            context.registry,
            Limits(context, KV_LIMITS),
            lambda: self._intake.subscribers if self._intake else 0,
            lambda: self._index.size,
            lambda: self._intake.waiting if self._intake else 0,
        )
        self._check = SelfCheck(context.registry) if parameters.self_check else None
        self._halving: list[tuple[EngineBlocks, int]] = []
        """Endpoints of which some blocks are still to be forgotten, with how many are to be left."""
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)

    @property
    def block_size_tokens(self) -> int:
        """Tokens per block."""
        return self._keys.block_size_tokens

    async def start(self) -> None:
        """Listen to the engines."""
        columns = self._context.columns
        if self._intake is not None and columns is not None:
            await self._intake.start(columns.endpoints)

    async def stop(self) -> None:
        """Listen no more."""
        if self._intake is not None:
            await self._intake.stop()

    def look_up(self, model: str, prompts: Sequence[PromptTokens], cache_salt: str, endpoints: Endpoints) -> Lookup:
        """Find the prompts' blocks; matches of several prompts add up."""
        began = self._context.clock()
        if self._speculation is not None:
            self._speculation.expire(began)
        slots, root = self._slots(endpoints), self._keys.root(model)
        worth, cached, beyond = (np.zeros(len(slots)) for _ in range(3))
        keys: list[int] = []
        total, unheld = 0, self._most_speculated
        most_made, is_whole = self._keys.made_bytes + self._most_made_bytes, True
        for prompt in prompts:
            total += len(prompt.token_ids) // self.block_size_tokens
            if self._keys.made_bytes > most_made:
                is_whole = False
                continue
            chain: list[int] = []
            # A client's prompt may have half a million blocks, and what lies behind the first that is held nowhere matches nothing.
            for key in self._keys.walk(root, prompt.token_ids, block_extras(prompt, cache_salt, self.block_size_tokens)):
                chain.append(key)
                if not self._index.is_held(key):
                    if not unheld:
                        if self._speculation is not None:
                            self._metrics.limits.acted(MANY_SPECULATED, about=model)
                        break
                    unheld -= 1
                if self._keys.made_bytes > most_made:
                    is_whole = False
                    break
            found = self._index.match(chain)
            worth += found.weighted[slots]
            cached += found.blocks[slots]
            for tier, blocks in found.by_tier.items():
                if tier not in (DEFAULT_TIER, SPECULATIVE):
                    beyond += blocks[slots]
            keys += chain
        if not is_whole:
            self._metrics.limits.acted(MANY_MADE, about=model)
        matched = np.floor(worth + 1e-9)
        if self._check is not None:
            matched = matched * self._check.factors(endpoints.pool_members)
        if total:
            self._metrics.looked_up(float(cached.max(initial=0.0)), self._context.clock() - began)
        return Lookup(total, tuple(keys), matched, cached, beyond)

    def sent(self, lookup: Lookup, endpoint: Endpoint, role: str, cached: float) -> None:
        """The request goes to this endpoint for one of its stages, which holds so many of its blocks."""
        self._metrics.sent(role, cached * self.block_size_tokens, lookup.total * self.block_size_tokens)
        if self._speculation is not None:
            self._speculation.add(self._index.slot(endpoint.name), lookup.keys, self._context.clock())

    def promise(self, lookup: Lookup, endpoint: Endpoint, cached: float) -> Promise | None:
        """What the index says of the endpoint that serves; None where promises are not checked. `judge` must follow."""
        blocks = self._blocks_of(endpoint)
        if self._check is None or not lookup.keys:
            return None
        if blocks is not None:
            blocks.watch()
        return Promise(endpoint, cached, lookup.total)

    def judge(self, promise: Promise, lookup: Lookup, end: ResponseEnd, comparable: bool) -> None:
        """Compare a promise with the server's report, if that is about the same endpoint and all went well: `comparable`."""
        blocks = self._blocks_of(promise.endpoint)
        if comparable and self._check is not None and end.cause is TerminationCause.NATURAL and end.usage is not None:
            finding = self._check.judge(promise, end.usage)
            if finding is not Finding.KEPT and blocks is not None:
                if blocks.is_overlooked:
                    self._metrics.limits.acted(MANY_RESTORED, about=promise.endpoint.name)
                wrong = lookup.keys[promise.found_blocks(end.usage) : int(promise.matched)]
                self._check.purged(promise.endpoint, blocks.disprove(wrong))
        if blocks is not None:
            blocks.unwatch()

    def learnt_bytes(self) -> int:
        """What the index takes."""
        return sum(map(len, self._intake.all_blocks())) * BYTES_PER_BLOCK if self._intake is not None else 0

    def forget_some(self) -> bool:
        """Of each endpoint, the half of its blocks that has been known for longest, in parts; whether there is more to do."""
        if not self._halving and self._intake is not None:
            self._halving = [(blocks, len(blocks) // 2) for blocks in self._intake.all_blocks()]
        left = _FORGOTTEN_AT_ONCE
        while left > 0 and self._halving:
            blocks, goal = self._halving[-1]
            some = min(left, max(0, len(blocks) - goal))
            blocks.forget_oldest(some)
            left -= some
            if len(blocks) <= goal:
                self._halving.pop()
        return bool(self._halving)

    def forget(self, name: str) -> None:
        """The endpoint has left."""
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
        self._pool = None  # the endpoint gets another slot while what was known of it before is forgotten
        return EngineBlocks(self._index, name, self._keys, self._capacity, self._most_restored)

    def _slots(self, endpoints: Endpoints) -> RowArray:
        members = endpoints.pool_members
        if members is not self._pool:
            if self._intake is not None:
                self._intake.follow(members)
            self._slot_of_member = self._index.slots(one.name for one in members)
            self._pool = members
        return self._slot_of_member


def block_extras(prompt: PromptTokens, cache_salt: str, block_size_tokens: int) -> Extras:
    """For each full block the media that overlap it, by their beginnings, and the salt in the first; empty where no block has any."""
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
    return [tuple(one) for one in found]
