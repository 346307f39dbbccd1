"""Keys of token blocks, and which endpoint holds which block in which memory tier.

Equal prompt prefixes get equal chains of keys, whichever engine stored them, as in llm-d.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

from endpick.api import FloatArray, RowArray
from endpick_builtin.producers.prefix_tree import ALL_SLOTS, EndpointSlots, chosen, credit

Tokens: TypeAlias = npt.NDArray[np.uint32]
Extras: TypeAlias = Sequence[tuple[str, ...]]  # media of each block; the first also has the cache salt

BYTES_PER_TOKEN: Final = 4
_KNOWN_KEYS: Final = 65_536
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF


class HashAlgorithm(StrEnum):
    """How a block's key is derived from its predecessor's."""

    CBOR_FNV = "cbor-fnv"  # 64-bit FNV-1a of the canonical CBOR of `[predecessor, tokens, extras]`
    XXH64 = "xxh64"  # of predecessor (8 bytes), tokens (4 bytes each), each extra prefixed by its length (8 bytes); little-endian


class BlockKeys:
    """Makes chained block keys, which are equal for equal prefixes of prompts."""

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
        """The number of tokens hashed with FNV in this process, at 0.6 µs each."""
        return _cbor_fnv_key.cache_info().misses * self.block_size_tokens

    def root(self, model: str) -> int:
        """Return the start of chains for a model or LoRA adapter."""
        return self._root(self._seed, model)

    def chain(self, parent: int, tokens: Tokens, extras: Extras = ()) -> list[int]:
        """Return the key of each full block after `parent`; `extras` has an entry per full block, or none."""
        return list(self.walk(parent, tokens, extras))

    def walk(self, parent: int, tokens: Tokens, extras: Extras = ()) -> Iterator[int]:
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


SPECULATIVE = "speculative"  # unconfirmed blocks of requests in flight
DEFAULT_TIER = "gpu"
_UNLISTED_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class TierMatch:
    """Leading blocks in any tier, weighted by the best tier, and by tier; shape `(slots,)`."""

    blocks: FloatArray
    weighted: FloatArray
    by_tier: Mapping[str, FloatArray]


class TierIndex:
    """Keeps the set of endpoints that hold a block, by tier and block key."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` by lower-case tier name; others weigh 1."""
        self._weights = weights
        self._holders: dict[str, dict[int, int]] = {}
        self._slots = EndpointSlots()

    def slots(self, names: Iterable[str]) -> RowArray:
        return np.array([self._slots.of(name) for name in names], dtype=np.intp)

    def slot(self, name: str) -> int:
        return self._slots.of(name)

    def release(self, name: str) -> None:
        self._slots.release(name)

    @property
    def size(self) -> int:
        return sum(map(len, self._holders.values()))

    def add(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        holders, bit = self._holders.setdefault(tier, {}), 1 << slot
        before = after = 0
        for key in keys:
            held = holders.get(key, 0)
            if held != before or not after:  # blocks with the same holders share one integer
                before, after = held, held | bit
            holders[key] = after

    def discard(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        holders, keep = self._holders.get(tier, {}), ~(1 << slot)
        for key in keys:
            held = holders.get(key, 0)
            rest = held & keep
            if rest:
                holders[key] = rest
            elif held:
                del holders[key]

    def discard_everywhere(self, slot: int, keys: Sequence[int]) -> None:
        for tier in self._holders:
            self.discard(slot, tier, keys)

    def is_held(self, key: int) -> bool:
        return any(key in holders for holders in self._holders.values())

    def match(self, keys: Sequence[int]) -> TierMatch:
        tiers = {tier: holders for tier, holders in self._holders.items() if holders}
        blocks = _leading(keys, list(tiers.values()), self._slots.count)
        weights = {tier: self._weights.get(tier, _UNLISTED_WEIGHT) for tier in tiers}
        if len(tiers) < 2:
            weight = next(iter(weights.values()), _UNLISTED_WEIGHT)
            return TierMatch(blocks, blocks * weight, dict.fromkeys(tiers, blocks))
        return self._by_tier(keys, blocks, weights)

    def _by_tier(self, keys: Sequence[int], blocks: FloatArray, weights: Mapping[str, float]) -> TierMatch:
        """Works on runs of blocks with the same holders: prompts have few."""
        size, deepest = len(blocks), int(blocks.max(initial=0.0))
        by_tier = {tier: np.zeros(size) for tier in weights}
        weighted, order = np.zeros(size), sorted(weights, key=lambda tier: -weights[tier])
        start = 0
        while start < deepest:
            masks = [self._holders[tier].get(keys[start], 0) for tier in order]
            end = start + 1
            while end < deepest and all(self._holders[tier].get(keys[end], 0) == mask for tier, mask in zip(order, masks, strict=True)):
                end += 1
            length = np.clip(blocks - start, 0.0, end - start)
            left = ALL_SLOTS
            for tier, mask in zip(order, masks, strict=True):
                if mask:
                    holds = chosen(mask, size)
                    by_tier[tier][holds] += length[holds]
                if mask & left:
                    best = chosen(mask & left, size)
                    weighted[best] += length[best] * weights[tier]
                    left &= ~mask
            start = end
        return TierMatch(blocks, weighted, by_tier)


def _leading(keys: Sequence[int], tiers: Sequence[Mapping[int, int]], size: int) -> FloatArray:
    counts, alive = np.zeros(size), ALL_SLOTS
    if not tiers:
        return counts
    first, others = tiers[0].get, [tier.get for tier in tiers[1:]]
    for depth, key in enumerate(keys):
        held = first(key, 0)
        for other in others:
            held |= other(key, 0)
        still = alive & held
        if still != alive:
            if depth:
                credit(counts, alive ^ still, depth)
            alive = still
            if not still:
                return counts
    if alive > 0:
        credit(counts, alive, len(keys))
    return counts


class Speculation:
    """Counts blocks of requests in flight as held, for a limited time."""

    def __init__(self, index: TierIndex, ttl_seconds: float) -> None:
        self._index, self._ttl_seconds = index, ttl_seconds
        self._expiry: dict[tuple[int, int], float] = {}
        self._due: deque[tuple[float, int, Sequence[int]]] = deque()

    def add(self, slot: int, keys: Sequence[int], now: float) -> None:
        expiry, keys = now + self._ttl_seconds, tuple(dict.fromkeys(keys))
        self._index.add(slot, SPECULATIVE, keys)
        self._expiry.update(((slot, key), expiry) for key in keys)
        self._due.append((expiry, slot, keys))

    def expire(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, slot, keys = self._due.popleft()
            expired = [key for key in keys if self._expiry.get((slot, key), now + 1.0) <= now]
            for key in expired:
                del self._expiry[slot, key]
            self._index.discard(slot, SPECULATIVE, expired)

    def forget(self, slot: int) -> None:
        keys = [key for place, key in self._expiry if place == slot]
        for key in keys:
            del self._expiry[slot, key]
        self._index.discard(slot, SPECULATIVE, keys)
        self._due = deque(entry for entry in self._due if entry[1] != slot)
