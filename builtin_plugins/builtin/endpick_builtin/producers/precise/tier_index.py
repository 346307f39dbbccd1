"""Which endpoint holds which block in which tier of memory, as the engines say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from endpick.api import FloatArray, RowArray
from endpick_builtin.producers.endpoint_slots import ALL_SLOTS, EndpointSlots, chosen, credit

SPECULATIVE = "speculative"
"""The tier of blocks that a request will bring along, as long as the engine has not said so."""
DEFAULT_TIER = "gpu"
_UNLISTED_WEIGHT = 1.0
MAX_TIERS = 8
"""Engines have two or three; names come from outside, and each costs a look-up per block."""


@dataclass(frozen=True, slots=True)
class TierMatch:
    """How much of a prompt each slot's endpoint holds; all arrays have shape `(slots,)`.

    Attributes:
        blocks: Leading blocks without a gap, in whatever tier.
        weighted: The same, each block with the weight of its best tier.
        by_tier: Of the leading blocks those that are in a tier, for each tier that holds any block at all.
    """

    blocks: FloatArray
    weighted: FloatArray
    by_tier: Mapping[str, FloatArray]


class TierIndex:
    """A set of endpoints for each block and tier; an endpoint has a slot while it is known."""

    def __init__(self, weights: Mapping[str, float], max_tiers: int = MAX_TIERS) -> None:
        """`weights`: how much a block in a tier is worth, by the tier's name in lower case; 1 where a tier is not listed."""
        self._weights, self._max_tiers = weights, max_tiers
        self._holders: dict[str, dict[int, int]] = {}
        self._slots = EndpointSlots()

    def slots(self, names: Iterable[str]) -> RowArray:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `release`."""
        return np.array([self._slots.of(name) for name in names], dtype=np.intp)

    def slot(self, name: str) -> int:
        """The same for one endpoint."""
        return self._slots.of(name)

    def release(self, name: str) -> None:
        """The endpoint has left. Its blocks must have been discarded."""
        self._slots.release(name)

    def retire(self, name: str) -> None:
        """The endpoint has left, and its blocks are still to be discarded: no other gets its slot before `free`."""
        self._slots.retire(name)

    def free(self, slot: int) -> None:
        """The blocks of an endpoint that was retired have been discarded."""
        self._slots.free(slot)

    @property
    def size(self) -> int:
        """Different blocks held, counted once for each tier."""
        return sum(map(len, self._holders.values()))

    def admits(self, tier: str) -> bool:
        """Whether blocks of this tier can be added: it is known, or one more tier fits."""
        return tier in self._holders or len(self._holders) < self._max_tiers

    def add(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        """The endpoint holds these blocks."""
        holders = self._holders.setdefault(tier, {})
        bit, before, after = 1 << slot, 0, 0
        for key in keys:
            held = holders.get(key, 0)
            if held != before or not after:
                before, after = held, held | bit
            holders[key] = after

    def discard(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        """The endpoint holds these blocks no more; those that it did not hold are ignored."""
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

    def holds(self, slot: int, tier: str, key: int) -> bool:
        """Whether the endpoint holds a block in a tier."""
        return bool(self._holders.get(tier, {}).get(key, 0) >> slot & 1)

    def is_held(self, key: int) -> bool:
        """Whether any endpoint holds a block in any tier."""
        return any(key in holders for holders in self._holders.values())

    def match(self, keys: Sequence[int]) -> TierMatch:
        """How much of a prompt's blocks each endpoint holds.

        A tier that does not weigh 1, or a second tier beside the device's, costs a pass of its own over the blocks that matched.
        """
        tiers = {tier: holders for tier, holders in self._holders.items() if holders}
        blocks = _leading(keys, list(tiers.values()), self._slots.count)
        weights = {tier: self._weights.get(tier, _UNLISTED_WEIGHT) for tier in tiers}
        if len(tiers) < 2:
            weight = next(iter(weights.values()), _UNLISTED_WEIGHT)
            return TierMatch(blocks, blocks if weight == 1.0 else blocks * weight, dict.fromkeys(tiers, blocks))
        return self._by_tier(keys, blocks, weights)

    def _by_tier(self, keys: Sequence[int], blocks: FloatArray, weights: Mapping[str, float]) -> TierMatch:
        """Counts runs of blocks with the same holders, which prompts consist of, and not single blocks."""
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
    """Leading blocks that the endpoint of each slot holds in any tier."""
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
