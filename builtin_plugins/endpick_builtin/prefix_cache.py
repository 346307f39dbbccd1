"""`approx-prefix-cache-producer`: guesses what each prefix cache holds from the prompts that were sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Self

import numpy as np
from prometheus_client import CollectorRegistry, Gauge
from pydantic import Field, model_validator
from xxhash import xxh64_intdigest

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PrefixBlocks,
    PreRequest,
    RowArray,
    SchedulingResult,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Distributions

BYTES_PER_TOKEN = 4
"""Where no tokenizer is at hand, four bytes of text count as one token."""


@lru_cache(maxsize=1024)
def chain_root(model: str, cache_salt: str) -> int:
    """Where chains begin: prompts for different models, or under different salts, never match."""
    return xxh64_intdigest(model.encode() + cache_salt.encode())


def block_hashes(text: bytes, root: int, block_size_tokens: int, limit: int | None) -> list[int]:
    """Hash of each block of the prompt, chained: h(i) = xxh64(block i, seeded with h(i - 1)).

    One call per block; llm-d hashes the block and its predecessor's hash once more, which no other process ever sees.

    Args:
        text: The prompt. It is read as tokens of four bytes, the last one filled up with zeros; the last block may be short.
        root: h(-1), see `chain_root`.
        block_size_tokens: Tokens per block.
        limit: Blocks to hash at most; None for all.
    """
    size = block_size_tokens * BYTES_PER_TOKEN
    length = len(text) if limit is None else min(len(text), limit * size)
    whole = length - length % size
    previous = root
    hashes = [previous := xxh64_intdigest(text[start : start + size], previous) for start in range(0, whole, size)]
    if whole < length:
        rest = text[whole:length]
        hashes.append(xxh64_intdigest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), previous))
    return hashes


RATIO_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
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
        self._hit_ratio.observe(matched / blocks)
        self._hit_bytes.observe(matched * block_size_tokens * BYTES_PER_TOKEN)


_ALL_SLOTS = -1
"""All bits set: the endpoints that may still hold the prompt before its first block was looked up."""
_MANY = 12


class PrefixIndex:
    """The blocks that were sent to each endpoint, as far as its cache can still hold them.

    An endpoint has a slot while it is known; the set of endpoints that hold a block is an integer with the bits of their slots. Walking
    a prompt then costs one dictionary look-up and one AND per block, however many endpoints there are.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._recent: dict[int, OrderedDict[int, None]] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """Different blocks held by any endpoint."""
        return len(self._holders)

    @property
    def entries(self) -> int:
        """Blocks held, counted once for each endpoint that holds them."""
        return sum(map(len, self._recent.values()))

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `remove`."""
        return np.array([self._slot(name) for name in names], dtype=np.intp)

    def match(self, hashes: Sequence[int]) -> FloatArray:
        """How many of these blocks, from the first one on and without a gap, the endpoint of each slot holds. Shape `(slots,)`."""
        counts = np.zeros(len(self._slots) + len(self._free))
        holders_of, alive = self._holders.get, _ALL_SLOTS
        for depth, block in enumerate(hashes):
            still = alive & holders_of(block, 0)
            if still != alive:
                if depth:
                    _credit(counts, alive ^ still, depth)
                alive = still
                if not still:
                    break
        if alive > 0:
            _credit(counts, alive, len(hashes))
        return counts

    def insert(self, name: str, hashes: Sequence[int], capacity: int) -> None:
        """Note that the endpoint now holds these blocks, and drop its least recently used ones beyond `capacity`.

        The last blocks count as used first, so that a prompt loses its end before its beginning, as in the engines. An endpoint
        without a slot is ignored: it has left.
        """
        slot = self._slots.get(name)
        if slot is None:
            return
        recent, holders, bit = self._recent[slot], self._holders, 1 << slot
        for block in reversed(hashes):
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(recent) > capacity:
            self._forget(recent.popitem(last=False)[0], bit)

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            for block in self._recent.pop(slot):
                self._forget(block, 1 << slot)
            self._free.append(slot)

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._slots)
            self._slots[name] = slot
            self._recent[slot] = OrderedDict()
        return slot

    def _forget(self, block: int, bit: int) -> None:
        rest = self._holders[block] ^ bit
        if rest:
            self._holders[block] = rest
        else:
            del self._holders[block]


def _credit(counts: FloatArray, slots: int, blocks: int) -> None:
    """Give the slots whose bits are set this many blocks: one by one while they are few, all at once when they are many."""
    if slots.bit_count() > _MANY:
        octets = np.frombuffer(slots.to_bytes((len(counts) + 7) // 8, "little"), dtype=np.uint8)
        counts[np.unpackbits(octets, count=len(counts), bitorder="little").view(np.bool_)] = blocks
        return
    while slots:
        lowest = slots & -slots
        counts[lowest.bit_length() - 1] = blocks
        slots ^= lowest


MIN_BLOCK_SIZE_TOKENS = 64
PREFILL_PROFILE = "prefill"


class ApproxPrefixCacheParameters(Parameters):
    """How prompts are cut into blocks, and how much each endpoint is believed to hold."""

    auto_tune: Annotated[
        bool, Field(alias="autoTune", description="Use block size and number of blocks as the engines report them, where they do.")
    ] = True
    block_size_tokens: Annotated[
        int, Field(alias="blockSizeTokens", description=f"Tokens per block; less than {MIN_BLOCK_SIZE_TOKENS} means that many.")
    ] = 16
    block_size: Annotated[int, Field(alias="blockSize", description="Ignored: the former block size in characters.")] = 0
    max_prefix_tokens_to_match: Annotated[
        int,
        Field(alias="maxPrefixTokensToMatch", ge=0, description="Tokens of a prompt to look at; 0 leaves it to maxPrefixBlocksToMatch."),
    ] = 131072
    max_prefix_blocks_to_match: Annotated[
        int, Field(alias="maxPrefixBlocksToMatch", ge=0, description="Blocks of a prompt to look at if not limited by tokens; 0: all.")
    ] = 2048
    lru_capacity_per_server: Annotated[
        int, Field(alias="lruCapacityPerServer", gt=0, description="Blocks an endpoint holds that does not report how many it has.")
    ] = 31250

    @model_validator(mode="after")
    def _has_a_block_size(self) -> Self:
        if not self.auto_tune and self.block_size_tokens <= 0:
            raise ValueError(f"blockSizeTokens must be > 0 when autoTune is disabled (current value: {self.block_size_tokens})")
        return self

    def blocks_to_match(self, block_size_tokens: int) -> int | None:
        """How many blocks of a prompt are looked at; None for all."""
        if self.max_prefix_tokens_to_match:
            return self.max_prefix_tokens_to_match // block_size_tokens
        return self.max_prefix_blocks_to_match or None


@dataclass(frozen=True, slots=True)
class _Found:
    """What became of one prompt: its blocks, and how many of them each row of the generation holds."""

    blocks: PrefixBlocks
    matched: FloatArray


def _largest(values: FloatArray) -> float:
    return float(np.fmax.reduce(values))


class ApproxPrefixCacheProducer(DataProducer[ApproxPrefixCacheParameters], PreRequest[ApproxPrefixCacheParameters]):
    """Count, for each candidate, the leading blocks of the prompt that were sent to it before and that it can still hold.

    A prompt is cut into blocks of max(64, reported or configured) tokens, hashed in a chain (see `prefix_hashing`). When a request leaves,
    its blocks count as held by the endpoint that serves it, and by the one picked by a profile named `prefill`, the least recently sent
    ones making room. Unlike llm-d, a match ends at the first block an endpoint lacks, an engine's number of blocks is converted to our
    block size, and nothing is ever remembered beyond the capacity. Of several prompts in one request the matches add up.
    """

    consumes_optional = (CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS)
    produces = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)

    def __init__(self, name: str, parameters: ApproxPrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._index = PrefixIndex()
        self._metrics = PrefixMetrics(context.registry, lambda: self._index.entries)
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Hash the prompt and look it up."""
        slots = self._slots(endpoints)
        size = self._block_size(endpoints)
        limit = self.parameters.blocks_to_match(size)
        root = chain_root(request.model, request.cache_salt)
        hashes: list[int] = []
        matched = np.zeros(len(slots))
        for text in request.prompt.texts:
            prompt = block_hashes(text, root, size, limit)
            matched += self._index.match(prompt)[slots]
            hashes += prompt
        blocks = PrefixBlocks(len(hashes), size, tuple(hashes))
        state.private["found"] = _Found(blocks, matched)
        state.put(PREFIX_BLOCKS, blocks)
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, endpoints.gather(matched))

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Remember where the prompt goes."""
        found = state.private.get("found")
        if not isinstance(found, _Found) or not found.blocks.hashes:
            return
        for profile in dict.fromkeys((result.primary, PREFILL_PROFILE)):
            run = result.runs.get(profile)
            if run is not None and run.picked is not None:
                first = run.picked if len(run.picked) == 1 else run.picked.take([0])
                self._index.insert(first.members[0].name, found.blocks.hashes, self._capacity(first, found.blocks.block_size_tokens))
                if profile == result.primary:
                    self._metrics.found(first.gather(found.matched)[0], found.blocks.total_blocks, found.blocks.block_size_tokens)

    def endpoint_removed(self, name: str) -> None:
        """Forget what it held; an endpoint that takes its name begins with an empty cache."""
        self._index.remove(name)
        self._pool = None

    def _slots(self, endpoints: Endpoints) -> RowArray:
        """The slot of every endpoint of the pool, also of those that are no candidates."""
        if endpoints.pool_members is not self._pool:
            self._slot_of_member = self._index.slots(endpoint.name for endpoint in endpoints.pool_members)
            self._pool = endpoints.pool_members
        return self._slot_of_member

    def _block_size(self, endpoints: Endpoints) -> int:
        reported = endpoints.derived(CACHE_BLOCK_SIZE, _largest) if self.parameters.auto_tune else 0.0
        return max(int(reported) if reported > 0 else self.parameters.block_size_tokens, MIN_BLOCK_SIZE_TOKENS)

    def _capacity(self, endpoint: Endpoints, block_size_tokens: int) -> int:
        engine_blocks = endpoint[CACHE_NUM_BLOCKS][0] if self.parameters.auto_tune else 0.0
        if not engine_blocks > 0:
            return self.parameters.lru_capacity_per_server
        engine_block_size = endpoint[CACHE_BLOCK_SIZE][0]
        tokens = engine_blocks * (engine_block_size if engine_block_size > 0 else block_size_tokens)
        return max(int(tokens) // block_size_tokens, 1)
