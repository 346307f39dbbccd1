"""Splits prompts into blocks: chained hashes, or fingerprints. Compiled, so it imports no plugin."""

from __future__ import annotations

import secrets
from functools import lru_cache
from hashlib import shake_128
from typing import Final

import numpy as np
from xxhash import xxh64_digest, xxh64_intdigest

BYTES_PER_TOKEN: Final = 4  # without a tokenizer
FINGERPRINT_BYTES: Final = 8

_ONE_BY_ONE: Final = 16  # hashing blocks singly is faster for short prompts


def new_seed() -> int:
    """Draw a seed for `fingerprints`; it is secret, so that clients cannot construct colliding blocks."""
    return secrets.randbits(64)


@lru_cache(maxsize=1024)
def chain_root(model: str, cache_salt: str) -> int:
    """Return the start of a chain, which differs by model and salt."""
    return xxh64_intdigest(model.encode() + cache_salt.encode())


def block_hashes(text: bytes, root: int, block_size_tokens: int, limit: int | None) -> list[int]:
    """Chained hash of each block: h(i) = xxh64(block i, seed=h(i - 1)), h(-1) = `root`.

    Tokens have four bytes, zero-padded at the end; the last block may be short. `limit` None hashes all.
    """
    size = block_size_tokens * BYTES_PER_TOKEN
    length = len(text) if limit is None else min(len(text), limit * size)
    whole = length - length % size
    previous = root
    hashes = []
    for start in range(0, whole, size):
        previous = xxh64_intdigest(text[start : start + size], previous)
        hashes.append(previous)
    if whole < length:
        rest = text[whole:length]
        hashes.append(xxh64_intdigest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), previous))
    return hashes


def fingerprints(text: bytes, root: int, block_size_tokens: int, limit: int | None, seed: int) -> bytes:
    """Concatenated fingerprints of `FINGERPRINT_BYTES` each; arguments as for `block_hashes`.

    A fingerprint depends on its block and on `seed`, the first also on `root`. After 16 blocks it is a sum of 32-bit numbers times 64-bit
    factors that only the seed knows, with collision probability 2^-33 at most (Lemire and Kaser, "Strongly Universal String Hashing is
    Fast", 2014).
    """
    size = block_size_tokens * BYTES_PER_TOKEN
    length = len(text) if limit is None else min(len(text), limit * size)
    whole = length - length % size
    alone = min(whole, _ONE_BY_ONE * size)
    first = root ^ seed
    parts = []
    for start in range(0, alone, size):
        parts.append(xxh64_digest(text[start : start + size], first))
        first = seed
    if alone < whole:
        numbers = np.frombuffer(text, dtype="<u4", count=(whole - alone) // 4, offset=alone).reshape(-1, block_size_tokens)
        parts.append(np.einsum("ij,j->i", numbers, _factors(seed, block_size_tokens)).tobytes())
    if whole < length:
        rest = text[whole:length]
        parts.append(xxh64_digest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), first))
    return b"".join(parts)


@lru_cache(maxsize=16)
def _factors(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(shake_128(seed.to_bytes(8, "big")).digest(8 * count), dtype="<u8")
