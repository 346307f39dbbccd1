"""Parameters of `approx-prefix-cache-producer`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from endpick.api import Parameters, ignored
from endpick_builtin.producers.self_check import SELF_CHECK

MIN_BLOCK_SIZE_TOKENS = 64


class ApproxPrefixCacheParameters(Parameters):
    """How prompts are cut into blocks, and how much each endpoint is believed to hold."""

    auto_tune: Annotated[
        bool, Field(alias="autoTune", description="Use block size and number of blocks as the engines report them, where they do.")
    ] = True
    block_size_tokens: Annotated[
        int, Field(alias="blockSizeTokens", description=f"Tokens per block; less than {MIN_BLOCK_SIZE_TOKENS} means that many.")
    ] = 16
    block_size: Annotated[int, ignored("blockSize", "give the tokens of a block as `blockSizeTokens`; this is a number of characters")] = 0
    max_prefix_tokens_to_match: Annotated[
        int,
        Field(alias="maxPrefixTokensToMatch", ge=0, description="Tokens of one request to look at; 0 leaves it to maxPrefixBlocksToMatch."),
    ] = 131072
    max_prefix_blocks_to_match: Annotated[
        int,
        Field(
            alias="maxPrefixBlocksToMatch",
            ge=0,
            deprecated=True,
            description="Blocks of one request to look at if `maxPrefixTokensToMatch`, which is to be preferred, is 0; 0: all.",
        ),
    ] = 2048
    lru_capacity_per_server: Annotated[
        int, Field(alias="lruCapacityPerServer", gt=0, description="Blocks an endpoint holds that does not report how many it has.")
    ] = 31250
    self_check: SELF_CHECK = True

    @model_validator(mode="after")
    def _has_a_block_size(self) -> Self:
        if not self.auto_tune and self.block_size_tokens <= 0:
            raise ValueError(f"blockSizeTokens must be > 0 when autoTune is disabled (current value: {self.block_size_tokens})")
        return self

    def blocks_to_match(self, block_size_tokens: int) -> int | None:
        """How many blocks of a prompt are looked at; None for all."""
        if self.max_prefix_tokens_to_match:
            return self.max_prefix_tokens_to_match // block_size_tokens
        return self.__dict__["max_prefix_blocks_to_match"] or None
