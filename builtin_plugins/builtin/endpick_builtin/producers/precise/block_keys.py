"""The keys of blocks of tokens: equal beginnings of prompts have equal chains of keys, whichever engine stored them.

Both algorithms are llm-d's, to the bit. Engines have hashes of their own, which are opaque here: an event brings the tokens along, and
its blocks get their keys from those.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

Tokens: TypeAlias = npt.NDArray[np.uint32]
Extras: TypeAlias = Sequence[tuple[str, ...]]
"""For each block what, beside its tokens, makes it differ: media that overlap it; a cache salt in the first one."""

BYTES_PER_TOKEN = 4
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_64_BITS = 0xFFFFFFFFFFFFFFFF


class HashAlgorithm(StrEnum):
    """How a block's key follows from its predecessor's."""

    CBOR_FNV = "cbor-fnv"
    """FNV-1a, 64 bits, of the canonical CBOR of `[predecessor, tokens, extras]`."""
    XXH64 = "xxh64"
    """XXH64 of the predecessor (8 bytes), the tokens (4 bytes each), and each extra behind its length (8 bytes); little-endian."""


class BlockKeys:
    """Makes keys of one block size, one algorithm and one seed."""

    def __init__(self, block_size_tokens: int, algorithm: HashAlgorithm = HashAlgorithm.CBOR_FNV, seed: str = "") -> None:
        self.block_size_tokens = block_size_tokens
        self._key = _known.key if algorithm is HashAlgorithm.CBOR_FNV else _xxh64_key
        if algorithm is HashAlgorithm.CBOR_FNV:
            self._first, self._model_key = _fnv1a(seed.encode()), _cbor_fnv_root
        else:
            self._first, self._model_key = xxh64_intdigest(seed.encode()), _xxh64_root

    @property
    def made_bytes(self) -> int:
        """Of all blocks whose keys had to be made with FNV since the process began: what those cost, 0.15 µs each, nothing else does."""
        return _known.made_bytes

    def root(self, model: str) -> int:
        """Where chains of a model, or of a LoRA adapter, begin."""
        return self._model_key(self._first, model)

    def chain(self, parent: int, tokens: Tokens, extras: Extras = ()) -> list[int]:
        """The key of each full block; tokens that fill no block get none.

        Args:
            parent: Key of the block before the first one, or a root.
            tokens: Shape `(tokens,)`.
            extras: One entry per full block; empty where no block has any.
        """
        return list(self.walk(parent, tokens, extras))

    def walk(self, parent: int, tokens: Tokens, extras: Extras = ()) -> Iterator[int]:
        """The same, one after the other: a block whose key is not asked for costs nothing."""
        data = tokens.astype("<u4", copy=False).tobytes()
        width = self.block_size_tokens * BYTES_PER_TOKEN
        for number, start in enumerate(range(0, len(data) - width + 1, width)):
            parent = self._key(parent, data[start : start + width], extras[number] if extras else ())
            yield parent


class KnownKeys:
    """The keys by FNV that were made or asked for last: Python takes 10 µs for one, and conversations bring the same blocks again.

    They are bounded by what they take, since blocks have any size, and a cache salt may be a thousand characters of four bytes.
    """

    __slots__ = ("_bytes", "_most_bytes", "_new", "_old", "made_bytes")

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` for those asked for lately, and as many for those before."""
        self._most_bytes = most_bytes
        self._bytes = 0
        """Of the new ones."""
        self._new: dict[_Block, int] = {}
        self._old: dict[_Block, int] = {}
        self.made_bytes = 0
        """See `BlockKeys.made_bytes`."""

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def key(self, parent: int, tokens: bytes, extras: tuple[str, ...]) -> int:
        """The key of a block."""
        block = parent, tokens, extras
        found = self._new.get(block)
        if found is not None:
            return found
        size = len(tokens) + (_CHARACTER_BYTES * sum(map(len, extras)) if extras else 0)
        found = self._old.pop(block, None)
        if found is None:
            self.made_bytes += size
            found = _cbor_fnv_key(parent, tokens, extras)
        self._bytes += _ENTRY_BYTES + size
        if self._bytes > self._most_bytes:
            self._old, self._new, self._bytes = self._new, {}, _ENTRY_BYTES + size
        self._new[block] = found
        return found


_Block: TypeAlias = tuple[int, bytes, tuple[str, ...]]
_ENTRY_BYTES: Final = 320
"""What one takes beside its tokens and extras."""
_CHARACTER_BYTES: Final = 4
_known: Final = KnownKeys(12 * 1024 * 1024)
"""Of the process: 62,000 blocks of 16 tokens."""


def _cbor_fnv_key(parent: int, tokens: bytes, extras: tuple[str, ...]) -> int:
    numbers = struct.unpack(f"<{len(tokens) // BYTES_PER_TOKEN}I", tokens)
    encoded = b"".join([b"\x83", _head(0, parent), _head(4, len(numbers)), *[_head(0, number) for number in numbers]])
    if not extras:
        return _fnv1a(encoded + b"\xf6")
    maps = [b"\xa1\x64Hash" + _text(extra) for extra in extras]
    return _fnv1a(b"".join([encoded, _head(4, len(maps)), *maps]))


@lru_cache(maxsize=1024)
def _cbor_fnv_root(first: int, model: str) -> int:
    return _fnv1a(b"\x83" + _head(0, first) + b"\xf6" + _text(model))


def _xxh64_key(parent: int, tokens: bytes, extras: tuple[str, ...]) -> int:
    return xxh64_intdigest(parent.to_bytes(8, "little") + tokens + b"".join(map(_with_length, extras)))


@lru_cache(maxsize=1024)
def _xxh64_root(first: int, model: str) -> int:
    return _xxh64_key(first, b"", (model,))


def _with_length(extra: str) -> bytes:
    encoded = extra.encode()
    return len(encoded).to_bytes(8, "little") + encoded


def _fnv1a(data: bytes) -> int:
    """Five octets of arithmetic a step is what the algorithm is: it has no form that would do several at once."""
    value = _FNV_OFFSET
    for octet in data:
        value = (value ^ octet) * _FNV_PRIME & _64_BITS
    return value


def _head(major: int, argument: int) -> bytes:
    """Head of a CBOR item: its major type and its argument in the shortest form."""
    first = major << 5
    if argument < 24:
        return bytes((first | argument,))
    if argument < 0x100:
        return bytes((first | 24, argument))
    if argument < 0x10000:
        return _UINT16(first | 25, argument)
    if argument < 0x100000000:
        return _UINT32(first | 26, argument)
    return _UINT64(first | 27, argument)


_UINT16, _UINT32, _UINT64 = (struct.Struct(form).pack for form in (">BH", ">BI", ">BQ"))


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _head(3, len(encoded)) + encoded
