"""Prompts cut into blocks: by a chain of hashes, or by a fingerprint of each block.

Plain functions without any plugin, so that the compiled build can take them.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Final

import numpy as np
from xxhash import xxh64_digest, xxh64_intdigest

BYTES_PER_TOKEN: Final = 4
"""Where no tokenizer is at hand, four bytes of text count as one token."""
FINGERPRINT_BYTES: Final = 8

_ONE_BY_ONE: Final = 16
"""So many first blocks are hashed each by a call, which is quicker for short prompts; the others all at once."""
_SEED: Final = secrets.randbits(64)
"""Of this process: no client knows which blocks have the same fingerprint."""


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
    hashes = []
    for start in range(0, whole, size):  # no comprehension: for most prompts it would cost more than their few blocks
        previous = xxh64_intdigest(text[start : start + size], previous)
        hashes.append(previous)
    if whole < length:
        rest = text[whole:length]
        hashes.append(xxh64_intdigest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), previous))
    return hashes


def fingerprints(text: bytes, root: int, block_size_tokens: int, limit: int | None) -> bytes:
    """The fingerprint of each block of the prompt, of `FINGERPRINT_BYTES` each, one after the other.

    Unlike the hashes of a chain, that of a block says nothing of those before it, but for the first, which depends on `root`. That is why
    most of a long prompt takes one call: its blocks are read as 32-bit numbers, and each block's are multiplied by as many random ones of
    64 bits and added up, modulo 2^64. Two different blocks then have the same fingerprint with a probability of 2^-33 at most, whatever
    they are, for a client that does not know the random numbers (multilinear hashing: Lemire and Kaser, "Strongly Universal String Hashing
    is Fast", 2014).

    Args and blocks are those of `block_hashes`.
    """
    size = block_size_tokens * BYTES_PER_TOKEN
    length = len(text) if limit is None else min(len(text), limit * size)
    whole = length - length % size
    alone = min(whole, _ONE_BY_ONE * size)
    seed = root ^ _SEED
    parts = []
    for start in range(0, alone, size):
        parts.append(xxh64_digest(text[start : start + size], seed))
        seed = _SEED
    if alone < whole:
        numbers = np.frombuffer(text, dtype="<u4", count=(whole - alone) // 4, offset=alone).reshape(-1, block_size_tokens)
        parts.append(np.einsum("ij,j->i", numbers, _factors(block_size_tokens)).tobytes())
    if whole < length:
        rest = text[whole:length]
        parts.append(xxh64_digest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), seed))
    return b"".join(parts)


@lru_cache(maxsize=16)
def _factors(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
