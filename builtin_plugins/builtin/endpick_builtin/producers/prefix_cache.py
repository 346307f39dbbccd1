"""`approx-prefix-cache-producer`: guesses what each prefix cache holds from the prompts that were sent there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeAlias, overload

import numpy as np
from prometheus_client.metrics import Gauge
from prometheus_client.registry import CollectorRegistry

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PrefixBlocks,
    PreRequest,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    RowArray,
    SchedulingResult,
    Stability,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Distributions
from endpick_builtin.producers.prefix_parameters import MIN_BLOCK_SIZE_TOKENS, ApproxPrefixCacheParameters
from endpick_builtin.producers.prefix_promises import PrefixPromises
from endpick_builtin.producers.prefix_tree import PrefixTree
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN, FINGERPRINT_BYTES, block_hashes, chain_root, fingerprints

RATIO_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_MOST_PROMPTS = 256
"""Of one request that are looked at, where they are short: so large a part of the limit each counts at least. Two thousand took 20 ms."""
_FORGOTTEN_AT_ONCE = 2000
"""Branches of the index: they take some milliseconds."""
BYTES_BUCKETS = (0.0, *(float(2**power) for power in range(4, 17)))


class PrefixMetrics:
    """The metrics of one index."""

    def __init__(self, registry: CollectorRegistry | None, entries: Callable[[], int]) -> None:
        """`entries` gives the blocks held; it is called when Prometheus asks."""
        prefix = "llm_d_epp_prefix_indexer_"
        size = Gauge(f"{prefix}size", "Prompt blocks held, counted for each endpoint that holds them.", registry=registry)
        size.set_function(entries)
        ratio = "Share of a prompt's blocks that were found where the prompt went."
        self._hit_ratio = Distributions(f"{prefix}hit_ratio", ratio, (), RATIO_BUCKETS, registry).labels()
        found = "Bytes of a prompt that were found where the prompt went."
        self._hit_bytes = Distributions(f"{prefix}hit_bytes", found, (), BYTES_BUCKETS, registry).labels()

    def found(self, matched: float, blocks: int, block_size_tokens: int) -> None:
        """A prompt of this many blocks goes where the first `matched` of them are."""
        # What `Distribution.observe` does, for both in one go.
        for metric, value in ((self._hit_ratio, matched / blocks), (self._hit_bytes, matched * block_size_tokens * BYTES_PER_TOKEN)):
            metric.counts[bisect_left(metric.bounds, value)] += 1
            metric.total += value


PREFILL_PROFILE = "prefill"


Sizes: TypeAlias = tuple[float, list[float]]
"""The block size that most endpoints have, 0 for the configured one, and that of each candidate as it reports it."""
_NO_SIZES: Sizes = (0.0, [])
_LARGEST_BLOCK_TOKENS = 1 << 20
"""No engine has blocks of more tokens; what reports more reports nothing."""
_LARGEST_CACHE_TOKENS = 1 << 40
"""Of one KV cache."""


def _sizes(reported: FloatArray) -> Sizes:
    """Of sizes that as many have the largest. What one endpoint says of itself changes nothing for the others."""
    usual, counts = np.unique(np.where((reported >= 1) & (reported <= _LARGEST_BLOCK_TOKENS), reported, 0.0), return_counts=True)
    return float(usual[counts == counts.max()].max()) if len(usual) else 0.0, reported.tolist()


def _numbers(reported: FloatArray) -> list[float]:
    values: list[float] = reported.tolist()
    return values


class _ChainedHashes(Sequence[int]):
    """What `block_hashes` says of all prompts of a request, worked out for the first plugin that asks; mostly there is none."""

    def __init__(self, prompts: Sequence[bytes], root: int, block_size_tokens: int, limit: int | None) -> None:
        self._cut = prompts, root, block_size_tokens, limit
        self._hashes: tuple[int, ...] | None = None

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return self._known()[index]

    def __len__(self) -> int:
        return len(self._known())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._known() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._known())

    def _known(self) -> tuple[int, ...]:
        if self._hashes is None:
            prompts, root, size, left = self._cut
            least = 0 if left is None else left // _MOST_PROMPTS
            hashes: list[int] = []
            for prompt in prompts:
                found = block_hashes(prompt, root, size, left)
                left = None if left is None else left - max(len(found), least)
                hashes += found
            self._hashes = tuple(hashes)
        return self._hashes


class ApproxPrefixCacheProducer(
    DataProducer[ApproxPrefixCacheParameters], PreRequest[ApproxPrefixCacheParameters], ResponseObserver[ApproxPrefixCacheParameters]
):
    """Count, for each candidate, the leading blocks of the prompt that were sent to it before and that it can still hold.

    The prompt's tokens are those that a `token-producer` in the configuration leaves; without one, four bytes of text each, the last
    one filled up with zeros. They are cut into blocks of max(64, reported or configured) tokens, each known by a fingerprint of 64 bits;
    what counts as reported is the size that most endpoints have, those with the configured one that report none.
    When a request leaves, its blocks count as held by the endpoint that serves it, and by the one picked by a profile named `prefill`, the
    least recently sent ones making room. Unlike llm-d, a match ends at the first block an endpoint lacks, an engine's number of blocks is
    converted to our block size, and nothing is ever remembered beyond the capacity. Of several prompts in one request the matches add up.
    With `selfCheck` each match is multiplied by its endpoint's calibration (see `self_check`), and what the server's report proves false is
    purged; servers that report no cached tokens are believed.
    """

    consumes_optional = (CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, TOKENIZED_PROMPT)
    produces = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)

    def __init__(self, name: str, parameters: ApproxPrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._index = PrefixTree()
        self._metrics = PrefixMetrics(context.registry, lambda: self._index.entries)
        self._promises = PrefixPromises(self._index, context.registry) if parameters.self_check else None
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)
        self._in_order = False
        """Whether the members have the slots 0, 1, 2, …, as long as none has left."""
        self._tune(_NO_SIZES)
        if parameters.block_size:
            context.logger.warning("blockSize has no effect: give blockSizeTokens, four characters each")

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Hash the prompt and look it up."""
        members = endpoints.pool_members
        if members is not self._pool:
            self._slot_of_member, self._pool = self._index.slots(endpoint.name for endpoint in members), members
            self._in_order = bool(np.array_equal(self._slot_of_member, np.arange(self._index.width)))
        reported = endpoints.derived(CACHE_BLOCK_SIZE, _sizes) if self.parameters.auto_tune else _NO_SIZES
        if reported is not self._reported:
            self._tune(reported)
        size, limit = self._block_size_tokens, self._blocks_to_match
        root, least = chain_root(request.model, request.cache_salt), 0 if limit is None else limit // _MOST_PROMPTS
        tokens, left = state.get(TOKENIZED_PROMPT), limit
        texts: list[bytes] = []
        prompts: list[bytes] = []
        counted: FloatArray | None = None
        total = 0
        for each in request.prompt.texts if tokens is None else tokens:
            if left is not None and left <= 0:
                break
            most = None if left is None else left * size
            text = each if isinstance(each, bytes) else each.token_ids[:most].tobytes()
            texts.append(text)
            prompt = fingerprints(text, root, size, left)
            blocks = len(prompt) // FINGERPRINT_BYTES
            left = None if left is None else left - max(blocks, least)
            count = self._index.match(prompt)
            counted = count if counted is None else counted + count
            prompts.append(prompt)
            total += blocks
        if counted is None:
            counted = np.zeros(self._index.width)
        matched = counted if self._in_order else counted[self._slot_of_member]
        promises, here = self._promises, endpoints.gather(matched)
        believed = endpoints.gather(promises.calibrated(matched, members)) if promises is not None and promises.heard else here
        state.put(PREFIX_BLOCKS, PrefixBlocks(total, size, _ChainedHashes(texts, root, size, limit)))
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, believed)
        if total:
            held = endpoints.derived(CACHE_NUM_BLOCKS, _numbers) if self.parameters.auto_tune else []
            state.private["found"] = prompts, total, size, here, endpoints, reported[1], held

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Remember where the prompt goes."""
        found = state.private.get("found")
        if not isinstance(found, tuple):
            return
        prompts, total, size, matched, candidates, engine_sizes, engine_blocks = found  # the last two as `matched`, by candidate
        for profile in dict.fromkeys((result.primary, PREFILL_PROFILE)):
            run = result.runs.get(profile)
            if run is None or run.picked is None:
                continue
            endpoint, promises = run.picked.members[0], self._promises
            position = candidates.position(endpoint.name)
            if profile == result.primary:
                here = float(matched[position])  # with a number of numpy's own, all that follows takes some times as long
                if promises is not None and promises.heard:
                    promises.promise(state, endpoint, prompts, here)
                self._metrics.found(here, total, size)
            capacity = self.parameters.lru_capacity_per_server
            if engine_blocks and engine_blocks[position] > 0:
                tokens = engine_blocks[position] * (engine_sizes[position] if engine_sizes[position] > 0 else size)
                capacity = max(int(min(tokens, _LARGEST_CACHE_TOKENS)) // size, 1)
            for prompt in reversed(prompts):
                self._index.insert(endpoint.name, prompt, capacity)

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        """Note whether the picked endpoint served."""
        if self._promises is not None and self._promises.heard:
            self._promises.started(head, state)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Hold what was promised against what the server reports."""
        promises, usage = self._promises, end.usage
        if promises is not None and (promises.heard or (usage is not None and usage.cached_tokens is not None)):
            promises.ended(end, state)

    def endpoint_removed(self, name: str) -> None:
        """Forget what it held; an endpoint that takes its name begins with an empty cache."""
        self._index.remove(name)
        if self._promises is not None:
            self._promises.forget(name)
        self._pool = None

    def learnt_bytes(self) -> int:
        """What the index takes."""
        return self._index.size_bytes

    def forget_some(self) -> bool:
        """Of each endpoint, the half of its blocks that were used least recently, in parts."""
        return self._index.halve(_FORGOTTEN_AT_ONCE)

    def _tune(self, reported: Sizes) -> None:
        """Cut prompts as the engines do, from now on."""
        self._reported = reported
        usual = reported[0]
        self._block_size_tokens = max(int(usual) if usual > 0 else self.parameters.block_size_tokens, MIN_BLOCK_SIZE_TOKENS)
        self._blocks_to_match = self.parameters.blocks_to_match(self._block_size_tokens)


class MulticlusterApproxPrefixCacheProducer(ApproxPrefixCacheProducer):
    """The same as `approx-prefix-cache-producer`, for endpoints that stand for whole clusters.

    A configuration that has both names the one to read from at each consumer (`prefixMatchInfoProducerName`).
    """

    stability = Stability.EXPERIMENTAL
