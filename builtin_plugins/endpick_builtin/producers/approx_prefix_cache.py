"""`approx-prefix-cache-producer`: guesses what each prefix cache holds from the prompts that were sent there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

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
    PluginMeta,
    PrefixBlocks,
    PreRequest,
    RowArray,
    SchedulingResult,
    UpstreamHeaders,
)
from endpick_builtin.producers.prefix_hashing import block_hashes, chain_root
from endpick_builtin.producers.prefix_index import PrefixIndex
from endpick_builtin.producers.prefix_metrics import PrefixMetrics

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


class ApproxPrefixCacheProducer(DataProducer[ApproxPrefixCacheParameters], PreRequest[ApproxPrefixCacheParameters]):
    """Count, for each candidate, the leading blocks of the prompt that were sent to it before and that it can still hold.

    A prompt is cut into blocks of max(64, reported or configured) tokens, hashed in a chain (see `prefix_hashing`). When a request leaves,
    its blocks count as held by the endpoint that serves it, and by the one picked by a profile named `prefill`, the least recently sent
    ones making room. Unlike llm-d, a match ends at the first block an endpoint lacks, an engine's number of blocks is converted to our
    block size, and nothing is ever remembered beyond the capacity. Of several prompts in one request the matches add up.
    """

    meta = PluginMeta(
        type="approx-prefix-cache-producer",
        api=">=1.0,<2",
        parameters=ApproxPrefixCacheParameters,
        consumes_optional=(CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS),
        produces=(PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS),
    )

    def __init__(self, name: str, parameters: ApproxPrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._index = PrefixIndex()
        self._metrics = PrefixMetrics(context.registry, lambda: self._index.entries)
        self._generation: object = None
        self._slot_of_row: RowArray = np.empty(0, dtype=np.intp)

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
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, matched if endpoints.is_whole else matched[endpoints.rows])

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
                    self._metrics.found(found.matched[first.rows[0]], found.blocks.total_blocks, found.blocks.block_size_tokens)

    def endpoint_removed(self, name: str) -> None:
        """Forget what it held; whoever takes its name begins with an empty cache."""
        self._index.remove(name)
        self._generation = None

    def _slots(self, endpoints: Endpoints) -> RowArray:
        """The slot of every row of the generation, also of rows that are no candidates."""
        if endpoints.generation is not self._generation:
            self._slot_of_row = self._index.slots(endpoint.name for endpoint in endpoints.generation.endpoints)
            self._generation = endpoints.generation
        return self._slot_of_row

    def _block_size(self, endpoints: Endpoints) -> int:
        reported = np.fmax.reduce(endpoints[CACHE_BLOCK_SIZE]) if self.parameters.auto_tune else 0.0
        return max(int(reported) if reported > 0 else self.parameters.block_size_tokens, MIN_BLOCK_SIZE_TOKENS)

    def _capacity(self, endpoint: Endpoints, block_size_tokens: int) -> int:
        engine_blocks = endpoint[CACHE_NUM_BLOCKS][0] if self.parameters.auto_tune else 0.0
        if not engine_blocks > 0:
            return self.parameters.lru_capacity_per_server
        engine_block_size = endpoint[CACHE_BLOCK_SIZE][0]
        tokens = engine_blocks * (engine_block_size if engine_block_size > 0 else block_size_tokens)
        return max(int(tokens) // block_size_tokens, 1)
