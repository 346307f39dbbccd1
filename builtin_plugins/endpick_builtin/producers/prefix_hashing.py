"""A prompt as a chain of block hashes: equal beginnings give equal hashes, and a hash stands for everything before it, too."""

from __future__ import annotations

from xxhash import xxh64_intdigest

BYTES_PER_TOKEN = 4
"""Where no tokenizer is at hand, four bytes of text count as one token."""


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
