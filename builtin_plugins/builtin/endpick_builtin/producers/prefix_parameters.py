"""Parameters of `approx-prefix-cache-producer`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.self_check import SELF_CHECK

MIN_BLOCK_SIZE_TOKENS = 64


class ApproxPrefixCacheParameters(CamelParameters):
    """Sets block size, match limit and assumed cache size."""

    auto_tune: Annotated[bool, Field(description="Use the block size and number of blocks that engines report, if they do.")] = True
    block_size_tokens: Annotated[int, Field(description=f"Tokens per block; at least {MIN_BLOCK_SIZE_TOKENS} are used.")] = 16
    block_size: Annotated[int, ignored("blockSize", "give the tokens of a block as `blockSizeTokens`; this is a number of characters")] = 0
    max_prefix_tokens_to_match: Annotated[
        int, Field(ge=0, description="Maximum tokens matched per request; 0 uses maxPrefixBlocksToMatch.")
    ] = 131072
    max_prefix_blocks_to_match: Annotated[
        int, Field(ge=0, deprecated=True, description="Maximum blocks matched per request if `maxPrefixTokensToMatch` is 0; 0: no limit.")
    ] = 2048
    lru_capacity_per_server: Annotated[int, Field(gt=0, description="Cache size in blocks of endpoints that do not report it.")] = 31250
    self_check: SELF_CHECK = True

    @model_validator(mode="after")
    def _has_a_block_size(self) -> Self:
        if not self.auto_tune and self.block_size_tokens <= 0:
            raise ValueError(f"blockSizeTokens must be > 0 when autoTune is disabled (current value: {self.block_size_tokens})")
        return self

    def blocks_to_match(self, block_size_tokens: int) -> int | None:
        if self.max_prefix_tokens_to_match:
            return self.max_prefix_tokens_to_match // block_size_tokens
        return self.__dict__["max_prefix_blocks_to_match"] or None
