"""How many tokens a request will cost, as far as its size and the prefix caches tell."""

from __future__ import annotations

from endpick.api import InferenceRequest, PrefixBlocks


def prompt_tokens(request: InferenceRequest) -> int:
    """Four bytes per token of the prompt or, when nobody could read one, of the body."""
    return request.prompt.estimated_tokens or (request.size_bytes + 3) // 4


def uncached_tokens(tokens: int, blocks: PrefixBlocks | None, matched_blocks: float) -> int:
    """Prompt tokens that are not cached: unmatched blocks, and what lies beyond the blocks that were looked at."""
    if blocks is None:
        return tokens
    missing = blocks.total_blocks - (int(matched_blocks) if matched_blocks > 0 else 0)
    return missing * blocks.block_size_tokens + max(0, tokens - blocks.total_blocks * blocks.block_size_tokens)


def output_tokens(prompt: int, ratio: float, *limits: int | None) -> int:
    """Tokens of the answer: in proportion to the prompt, and no more than any of the limits there are."""
    return min([round(prompt * ratio), *(limit for limit in limits if limit is not None)])
