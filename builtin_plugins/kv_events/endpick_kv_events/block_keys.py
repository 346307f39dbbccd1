"""Keys of token blocks: equal prompt prefixes get equal chains of keys, whichever engine stored them.

Both algorithms are llm-d's, bit for bit. Engines use hashes of their own; their events carry the tokens, from which keys are made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

Tokens: TypeAlias = npt.NDArray[np.uint32]
Extras: TypeAlias = Sequence[tuple[str, ...]]
"""For each block its media; the first block also has the cache salt."""

BYTES_PER_TOKEN: Final = 4
_KNOWN_KEYS: Final = 65_536
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF


class HashAlgorithm(StrEnum):
    """How a block's key is derived from its predecessor's."""

    CBOR_FNV = "cbor-fnv"
    """64-bit FNV-1a of the canonical CBOR of `[predecessor, tokens, extras]`."""
    XXH64 = "xxh64"
    """XXH64 of predecessor (8 bytes), tokens (4 bytes each), and each extra prefixed by its length (8 bytes); little-endian."""


class BlockKeys:
    """Makes block keys."""

    def __init__(self, block_size_tokens: int, algorithm: HashAlgorithm = HashAlgorithm.CBOR_FNV, seed: str = "") -> None:
        self.block_size_tokens = block_size_tokens
        self._key: Callable[[int, bytes, tuple[str, ...]], int]
        self._root: Callable[[int, str], int]
        if algorithm is HashAlgorithm.CBOR_FNV:
            self._key, self._root, self._seed = _cbor_fnv_key, _cbor_fnv_root, _fnv1a(seed.encode())
        else:
            self._key, self._root, self._seed = _xxh64_key, _xxh64_root, xxh64_intdigest(seed.encode())

    @property
    def new_tokens(self) -> int:
        """Tokens hashed with FNV so far in this process, at 0.6 µs each."""
        return _cbor_fnv_key.cache_info().misses * self.block_size_tokens

    def root(self, model: str) -> int:
        """The start of chains for a model or LoRA adapter."""
        return self._root(self._seed, model)

    def chain(self, parent: int, tokens: Tokens, extras: Extras = ()) -> list[int]:
        """The key of each full block; trailing tokens are ignored.

        Args:
            parent: Key of the preceding block, or a root.
            tokens: Shape `(tokens,)`.
            extras: One entry per full block, or empty.
        """
        return list(self.walk(parent, tokens, extras))

    def walk(self, parent: int, tokens: Tokens, extras: Extras = ()) -> Iterator[int]:
        """Like `chain`, but lazily."""
        data = tokens.astype("<u4", copy=False).tobytes()
        width = self.block_size_tokens * BYTES_PER_TOKEN
        for number, start in enumerate(range(0, len(data) - width + 1, width)):
            parent = self._key(parent, data[start : start + width], extras[number] if extras else ())
            yield parent


# FNV takes 10 µs a block in Python, and conversations repeat their blocks.
@lru_cache(maxsize=_KNOWN_KEYS)
def _cbor_fnv_key(parent: int, tokens: bytes, extras: tuple[str, ...]) -> int:
    numbers = struct.unpack(f"<{len(tokens) // BYTES_PER_TOKEN}I", tokens)
    encoded = b"".join([b"\x83", _head(0, parent), _head(4, len(numbers)), *[_head(0, number) for number in numbers]])
    if not extras:
        return _fnv1a(encoded + b"\xf6")
    maps = [b"\xa1\x64Hash" + _text(extra) for extra in extras]
    return _fnv1a(b"".join([encoded, _head(4, len(maps)), *maps]))


@lru_cache(maxsize=1024)
def _cbor_fnv_root(seed: int, model: str) -> int:
    return _fnv1a(b"\x83" + _head(0, seed) + b"\xf6" + _text(model))


def _xxh64_key(parent: int, tokens: bytes, extras: tuple[str, ...]) -> int:
    return xxh64_intdigest(parent.to_bytes(8, "little") + tokens + b"".join(map(_with_length, extras)))


@lru_cache(maxsize=1024)
def _xxh64_root(seed: int, model: str) -> int:
    return _xxh64_key(seed, b"", (model,))


def _with_length(extra: str) -> bytes:
    encoded = extra.encode()
    return len(encoded).to_bytes(8, "little") + encoded


def _fnv1a(data: bytes) -> int:
    value = _FNV_OFFSET
    for octet in data:
        value = (value ^ octet) * _FNV_PRIME & _64_BITS
    return value


def _head(major: int, argument: int) -> bytes:
    """The head of a CBOR item, in the shortest form."""
    first = major << 5
    if argument < 24:
        return bytes((first | argument,))
    if argument < 0x100:
        return bytes((first | 24, argument))
    if argument < 0x10000:
        return struct.pack(">BH", first | 25, argument)
    if argument < 0x100000000:
        return struct.pack(">BI", first | 26, argument)
    return struct.pack(">BQ", first | 27, argument)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _head(3, len(encoded)) + encoded
