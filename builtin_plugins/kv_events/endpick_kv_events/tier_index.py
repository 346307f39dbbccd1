"""Which endpoint holds which block in which memory tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from endpick.api import FloatArray, RowArray
from endpick_builtin.producers.endpoint_slots import ALL_SLOTS, EndpointSlots, chosen, credit

SPECULATIVE = "speculative"
"""Tier of unconfirmed blocks of requests in flight."""
DEFAULT_TIER = "gpu"
_UNLISTED_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class TierMatch:
    """Leading blocks in any tier, weighted by the best tier, and by tier; shape `(slots,)`."""

    blocks: FloatArray
    weighted: FloatArray
    by_tier: Mapping[str, FloatArray]


class TierIndex:
    """Sets of endpoints by tier and block key."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` by lower-case tier name; others weigh 1."""
        self._weights = weights
        self._holders: dict[str, dict[int, int]] = {}
        self._slots = EndpointSlots()

    def slots(self, names: Iterable[str]) -> RowArray:
        """The slots of these endpoints."""
        return np.array([self._slots.of(name) for name in names], dtype=np.intp)

    def slot(self, name: str) -> int:
        """The slot of one endpoint."""
        return self._slots.of(name)

    def release(self, name: str) -> None:
        """Free the slot of an endpoint without blocks."""
        self._slots.release(name)

    @property
    def size(self) -> int:
        """Distinct blocks held, counted once per tier."""
        return sum(map(len, self._holders.values()))

    def add(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        """Record that the endpoint holds these blocks."""
        holders, bit = self._holders.setdefault(tier, {}), 1 << slot
        before = after = 0
        for key in keys:
            held = holders.get(key, 0)
            if held != before or not after:  # blocks with the same holders share one integer
                before, after = held, held | bit
            holders[key] = after

    def discard(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        """The endpoint no longer holds these blocks."""
        holders, keep = self._holders.get(tier, {}), ~(1 << slot)
        for key in keys:
            held = holders.get(key, 0)
            rest = held & keep
            if rest:
                holders[key] = rest
            elif held:
                del holders[key]

    def discard_everywhere(self, slot: int, keys: Sequence[int]) -> None:
        """The endpoint holds these blocks in no tier."""
        for tier in self._holders:
            self.discard(slot, tier, keys)

    def is_held(self, key: int) -> bool:
        """Whether any endpoint holds a block in any tier."""
        return any(key in holders for holders in self._holders.values())

    def match(self, keys: Sequence[int]) -> TierMatch:
        """How many leading blocks of a prompt each endpoint holds."""
        tiers = {tier: holders for tier, holders in self._holders.items() if holders}
        blocks = _leading(keys, list(tiers.values()), self._slots.count)
        weights = {tier: self._weights.get(tier, _UNLISTED_WEIGHT) for tier in tiers}
        if len(tiers) < 2:
            weight = next(iter(weights.values()), _UNLISTED_WEIGHT)
            return TierMatch(blocks, blocks * weight, dict.fromkeys(tiers, blocks))
        return self._by_tier(keys, blocks, weights)

    def _by_tier(self, keys: Sequence[int], blocks: FloatArray, weights: Mapping[str, float]) -> TierMatch:
        """Works on runs of blocks with the same holders, because prompts have few."""
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
    """Counts the blocks of requests in flight as held, for a limited time."""

    def __init__(self, index: TierIndex, ttl_seconds: float) -> None:
        self._index, self._ttl_seconds = index, ttl_seconds
        self._expiry: dict[tuple[int, int], float] = {}
        self._due: deque[tuple[float, int, Sequence[int]]] = deque()

    def add(self, slot: int, keys: Sequence[int], now: float) -> None:
        """A request with these blocks goes to the endpoint."""
        expiry, keys = now + self._ttl_seconds, tuple(dict.fromkeys(keys))
        self._index.add(slot, SPECULATIVE, keys)
        self._expiry.update(((slot, key), expiry) for key in keys)
        self._due.append((expiry, slot, keys))

    def expire(self, now: float) -> None:
        """Remove expired blocks, unless a later request renewed them."""
        while self._due and self._due[0][0] <= now:
            _, slot, keys = self._due.popleft()
            expired = [key for key in keys if self._expiry.get((slot, key), now + 1.0) <= now]
            for key in expired:
                del self._expiry[slot, key]
            self._index.discard(slot, SPECULATIVE, expired)

    def forget(self, slot: int) -> None:
        """Remove all blocks of an endpoint."""
        keys = [key for place, key in self._expiry if place == slot]
        for key in keys:
            del self._expiry[slot, key]
        self._index.discard(slot, SPECULATIVE, keys)
        self._due = deque(entry for entry in self._due if entry[1] != slot)
