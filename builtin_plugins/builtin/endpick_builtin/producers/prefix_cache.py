"""`approx-prefix-cache-producer`: estimates prefix caches from the prompts that were sent there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
from prometheus_client.metrics import Gauge
from prometheus_client.registry import CollectorRegistry

from endpick.api import (
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
    Stability,
    TerminationCause,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Distributions
from endpick.api.fleet import LearntState
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PrefixBlocks
from endpick.api.plugin import MAX_DUMPED
from endpick_builtin.producers.prefix_parameters import MIN_BLOCK_SIZE_TOKENS, ApproxPrefixCacheParameters
from endpick_builtin.producers.prefix_tree import PrefixTree
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN, FINGERPRINT_BYTES, chain_root, fingerprints, new_seed
from endpick_builtin.producers.self_check import Finding, Promise, SelfCheck

PREFILL_PROFILE: Final = "prefill"
RATIO_BUCKETS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BYTES_BUCKETS: Final = (0.0, *(float(2**power) for power in range(4, 17)))
_MAX_PROMPTS: Final = 256
"""Each prompt counts as at least 1/256 of the block limit."""
_MAX_BLOCK_TOKENS: Final = 1 << 20
_MAX_CACHE_TOKENS: Final = 1 << 40

Sizes: TypeAlias = tuple[float, list[float]]
"""The most frequent block size, 0 for the configured one, and the block size of each candidate."""
_NO_SIZES: Final[Sizes] = (0.0, [])


def _sizes(reported: FloatArray) -> Sizes:
    usual, counts = np.unique(np.where((reported >= 1) & (reported <= _MAX_BLOCK_TOKENS), reported, 0.0), return_counts=True)
    return float(usual[counts == counts.max()].max()) if len(usual) else 0.0, reported.tolist()


def _numbers(reported: FloatArray) -> list[float]:
    values: list[float] = reported.tolist()
    return values


class _PrefixMetrics:
    def __init__(self, registry: CollectorRegistry | None, entries: Callable[[], int]) -> None:
        prefix = "llm_d_epp_prefix_indexer_"
        size = Gauge(f"{prefix}size", "Prompt blocks held, counted once per endpoint.", registry=registry)
        size.set_function(entries)
        ratio = "Share of a prompt's blocks held by the picked endpoint."
        self._hit_ratio = Distributions(f"{prefix}hit_ratio", ratio, (), RATIO_BUCKETS, registry).labels()
        hit = "Bytes of a prompt held by the picked endpoint."
        self._hit_bytes = Distributions(f"{prefix}hit_bytes", hit, (), BYTES_BUCKETS, registry).labels()

    def found(self, matched: float, blocks: int, block_size_tokens: int) -> None:
        self._hit_ratio.observe(matched / blocks)
        self._hit_bytes.observe(matched * block_size_tokens * BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class _Sent:
    promise: Promise
    prompts: Sequence[bytes]
    uses: Sequence[tuple[int, int]]
    """Runs of held blocks: length, and the last insertion that used them."""

    def use_of(self, position: int) -> int:
        for blocks, insertion in self.uses:
            if position < blocks:
                return insertion
            position -= blocks
        return 0


_Insertion: TypeAlias = tuple[str, int, list[bytes]]
"""Endpoint, its capacity in blocks, and the prompts sent there, in the order in which they were inserted."""
_Deltas: TypeAlias = tuple[int, int, list[_Insertion]]
"""Seed of the fingerprints, and the size of the index that has it."""
_Part: TypeAlias = tuple[int, int, str, list[tuple[int, bytes]], list[tuple[int, int]]]  # seed, entries, endpoint, its tree
_encode: Final = msgspec.msgpack.encode
_read_deltas: Final = msgspec.msgpack.Decoder(_Deltas).decode
_read_part: Final = msgspec.msgpack.Decoder(_Part).decode


class ApproxPrefixCacheProducer(
    DataProducer[ApproxPrefixCacheParameters],
    PreRequest[ApproxPrefixCacheParameters],
    ResponseObserver[ApproxPrefixCacheParameters],
    LearntState,
):
    """Counts the leading blocks of the prompt that were sent to each candidate before and should still be cached there.

    Tokens come from a `token-producer`, or four bytes of text are one token. They are split into blocks of max(64, block size) tokens; with
    `autoTune` that is the size most candidates report.

    When a request leaves, its blocks count as held by the endpoints that the primary and the `prefill` profile picked; the least
    recently used ones make room. Unlike llm-d, a match ends at the first missing block, an engine's number of blocks is converted to our
    block size, and capacity is never exceeded. Matches of several prompts add up.

    `selfCheck` multiplies matches by the endpoint's calibration, and drops blocks that the server reports as uncached.
    """

    consumes_optional = (CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, TOKENIZED_PROMPT)
    produces = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)

    def __init__(self, name: str, parameters: ApproxPrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._index = PrefixTree()
        self._metrics = _PrefixMetrics(context.registry, lambda: self._index.entries)
        self._check = SelfCheck(context.registry) if parameters.self_check else None
        self._usage_reported = False
        self._seed = new_seed()
        self._unpublished: list[_Insertion] = []
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)
        self._tune(_NO_SIZES)
        if parameters.block_size:
            context.logger.warning("blockSize has no effect: give blockSizeTokens, four characters each")

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        members = endpoints.pool_members
        if members is not self._pool:
            self._follow(members)
        reported = endpoints.derived(CACHE_BLOCK_SIZE, _sizes) if self.parameters.auto_tune else _NO_SIZES
        if reported is not self._reported:
            self._tune(reported)
        size, left = self._block_size_tokens, self._blocks_to_match
        root, least = chain_root(request.model, request.cache_salt), 0 if left is None else left // _MAX_PROMPTS
        tokens = state.get(TOKENIZED_PROMPT)
        prompts: list[bytes] = []
        counted: FloatArray | None = None
        total = 0
        for source in request.prompt.texts if tokens is None else tokens:
            if left is not None and left <= 0:
                break
            text = source if isinstance(source, bytes) else source.token_ids[: None if left is None else left * size].tobytes()
            prompt = fingerprints(text, root, size, left, self._seed)
            blocks = len(prompt) // FINGERPRINT_BYTES
            left = None if left is None else left - max(blocks, least)
            count = self._index.match(prompt)
            counted = count if counted is None else counted + count
            prompts.append(prompt)
            total += blocks
        if counted is None:
            counted = np.zeros(self._index.width)
        matched = counted[self._slot_of_member]
        here = calibrated = endpoints.gather(matched)
        if self._check is not None and self._usage_reported:
            calibrated = endpoints.gather(matched * self._check.factors(members))
        state.put(PREFIX_BLOCKS, PrefixBlocks(total, size, fingerprints=prompts))
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, calibrated)
        if total:
            held = endpoints.derived(CACHE_NUM_BLOCKS, _numbers) if self.parameters.auto_tune else []
            state.private["found"] = prompts, total, size, here, endpoints, reported[1], held

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        found = state.private.get("found")
        if not isinstance(found, tuple):
            return
        prompts, total, size, matched, candidates, engine_sizes, engine_blocks = found
        for profile in dict.fromkeys((result.primary, PREFILL_PROFILE)):
            run = result.runs.get(profile)
            if run is None or run.picked is None:
                continue
            endpoint = run.picked.members[0]
            position = candidates.position(endpoint.name)
            if profile == result.primary:
                here = float(matched[position])
                if self._check is not None and self._usage_reported:
                    state.private["sent"] = self._promised(endpoint, prompts, here)
                self._metrics.found(here, total, size)
            capacity = self.parameters.lru_capacity_per_server
            if engine_blocks and engine_blocks[position] > 0:
                tokens = engine_blocks[position] * (engine_sizes[position] if engine_sizes[position] > 0 else size)
                capacity = max(int(min(tokens, _MAX_CACHE_TOKENS)) // size, 1)
            for prompt in reversed(prompts):
                self._index.insert(endpoint.name, prompt, capacity)
            if self.context.is_shared:
                self._unpublished.append((endpoint.name, capacity, prompts[::-1]))

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        if self._usage_reported:
            sent = state.private.get("sent")
            if isinstance(sent, _Sent) and (head.endpoint is not sent.promise.endpoint or head.status != 200):
                del state.private["sent"]

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        if end.usage is None or end.usage.cached_tokens is None:
            return
        self._usage_reported = True
        sent = state.private.pop("sent", None)
        if self._check is not None and isinstance(sent, _Sent) and end.cause is TerminationCause.NATURAL:
            finding = self._check.judge(sent.promise, end.usage)
            if finding is not Finding.KEPT:
                self._purge(sent, sent.promise.found_blocks(end.usage), finding)

    def dump_state(self) -> object:
        blocks = sorted(self._index.blocks_by_endpoint().items())
        return {"blockSizeTokens": self._block_size_tokens, "total": self._index.entries, "endpoints": dict(blocks[:MAX_DUMPED])}

    def snapshot(self) -> Iterable[bytes]:
        for name in self._index.names():
            yield _encode((self._seed, self._index.entries, name, *self._index.snapshot(name)))

    def restore(self, part: bytes) -> None:
        seed, entries, name, branches, insertions = _read_part(part)
        if self._agrees(seed, entries):
            self._follow_pool()
            self._index.restore(name, branches, insertions)

    def drain_deltas(self) -> bytes:
        unpublished, self._unpublished = self._unpublished, []
        return _encode((self._seed, self._index.entries, unpublished)) if unpublished else b""

    def apply(self, deltas: bytes, origin: str) -> None:
        seed, entries, insertions = _read_deltas(deltas)
        if self._agrees(seed, entries):
            self._follow_pool()
            for name, capacity, prompts in insertions:
                for prompt in prompts:
                    self._index.insert(name, prompt, capacity)

    def endpoint_removed(self, name: str) -> None:
        self._index.remove(name)
        if self._check is not None:
            self._check.forget(name)
        self._pool = None

    def _agrees(self, seed: int, entries: int) -> bool:
        """Whether fingerprints can be compared. Pickers adopt the seed of the largest index; of equal ones, the smallest seed."""
        if seed == self._seed:
            return True
        if (entries, -seed) < (self._index.entries, -self._seed):
            return False
        self._seed, self._index, self._pool, self._unpublished = seed, PrefixTree(), None, []
        return True

    def _follow(self, members: tuple[Endpoint, ...]) -> None:
        self._slot_of_member, self._pool = self._index.slots(endpoint.name for endpoint in members), members

    def _follow_pool(self) -> None:
        if self.context.columns is not None:
            members = self.context.columns.endpoints().pool_members
            if members is not self._pool:
                self._follow(members)

    def _tune(self, reported: Sizes) -> None:
        self._reported = reported
        usual = reported[0]
        self._block_size_tokens = max(int(usual) if usual > 0 else self.parameters.block_size_tokens, MIN_BLOCK_SIZE_TOKENS)
        self._blocks_to_match = self.parameters.blocks_to_match(self._block_size_tokens)

    def _promised(self, endpoint: Endpoint, prompts: Sequence[bytes], matched: float) -> _Sent:
        uses = [stretch for prompt in prompts for stretch in self._index.uses(endpoint.name, prompt)]
        total = sum(map(len, prompts)) // FINGERPRINT_BYTES
        return _Sent(Promise(endpoint, matched, total), prompts, uses)

    def _purge(self, sent: _Sent, found: int, finding: Finding) -> None:
        """Drop blocks last used before the missing one, as engines do."""
        assert self._check is not None
        endpoint = sent.promise.endpoint
        purged = self._index.forget_unused_since(endpoint.name, sent.use_of(found))
        if finding is Finding.BROKEN_AGAIN:
            for prompt in sent.prompts:
                purged += self._index.forget(endpoint.name, prompt, max(0, found))
                found -= len(prompt) // FINGERPRINT_BYTES
        self._check.purged(endpoint, purged)


class MulticlusterApproxPrefixCacheProducer(ApproxPrefixCacheProducer):
    """`approx-prefix-cache-producer` for endpoints that are whole clusters; consumers select one by `prefixMatchInfoProducerName`."""

    stability = Stability.EXPERIMENTAL
