"""Which endpoint was sent which beginning of a prompt: prompts cut into hashed blocks, and the index that remembers the blocks.

Plain data structures without any plugin, so that the compiled build can take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from xxhash import xxh64_intdigest

from endpick.api.endpoints import BoolArray, FloatArray
from endpick_builtin.recency import Recency

BYTES_PER_TOKEN: Final = 4
"""Where no tokenizer is at hand, four bytes of text count as one token."""


BYTES_PER_ENTRY: Final = 200
"""What one block of one endpoint takes in the index, measured."""


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


ALL_SLOTS: Final = -1
"""All bits set: the endpoints that may still hold the prompt before its first block was looked up."""
_MANY: Final = 12


class EndpointSlots:
    """A slot for each known endpoint, so that a set of endpoints is an integer with the bits of their slots."""

    def __init__(self) -> None:
        self.slot_of: dict[str, int] = {}
        """The slot of each known endpoint, by name. Only to be read."""
        self.count = 0
        """Slots there are, taken or free: bits of sets, and lengths of arrays by slot. Only to be read."""
        self._free: list[int] = []

    def of(self, name: str) -> int:
        """The endpoint's slot; an unknown one gets one, and keeps it until `release`."""
        slot = self.slot_of.get(name)
        if slot is None:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self.count
                self.count += 1
            self.slot_of[name] = slot
        return slot

    def release(self, name: str) -> int | None:
        """Give the endpoint's slot to the next one that needs any; which it was."""
        slot = self.slot_of.pop(name, None)
        if slot is not None:
            self._free.append(slot)
        return slot


class PrefixIndex:
    """The blocks that were sent to each endpoint, as far as its cache can still hold them.

    The endpoints that hold a block are one integer, see `EndpointSlots`. Walking a prompt then costs one dictionary look-up and one AND
    per block, however many endpoints there are. Each endpoint has its blocks in the order of their last use, each with the number of the
    insertion that used it last: equal numbers were used together, lower ones earlier.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._slots = EndpointSlots()
        self._recent: dict[int, Recency[int, int]] = {}
        self._insertions = 0

    def __len__(self) -> int:
        """Different blocks held by any endpoint."""
        return len(self._holders)

    @property
    def entries(self) -> int:
        """Blocks held, counted once for each endpoint that holds them."""
        return sum(map(len, self._recent.values()))

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `remove`."""
        return np.array([self._slot(name) for name in names], dtype=np.intp)

    def match(self, hashes: Sequence[int]) -> FloatArray:
        """How many of these blocks, from the first one on and without a gap, the endpoint of each slot holds. Shape `(slots,)`."""
        counts = np.zeros(self._slots.count)
        holders_of, alive = self._holders.get, ALL_SLOTS
        for depth, block in enumerate(hashes):
            still = alive & holders_of(block, 0)
            if still != alive:
                if depth:
                    credit(counts, alive ^ still, depth)
                alive = still
                if not still:
                    break
        if alive > 0:
            credit(counts, alive, len(hashes))
        return counts

    def last_uses(self, name: str, blocks: Iterable[int]) -> list[int]:
        """The numbers of the insertions that last used these blocks at the endpoint; 0 for those that it does not hold."""
        slot = self._slots.slot_of.get(name)
        recent = {} if slot is None else self._recent[slot]
        return [recent.get(block, 0) for block in blocks]

    def insert(self, name: str, hashes: Sequence[int], capacity: int) -> None:
        """Note that the endpoint now holds these blocks, and drop its least recently used ones beyond `capacity`.

        The last blocks count as used first, so that a prompt loses its end before its beginning, as in the engines. An endpoint
        without a slot is ignored: it has left.
        """
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return
        self._insertions += 1
        stamp, recent, holders, bit = self._insertions, self._recent[slot], self._holders, 1 << slot
        move_to_end = recent.move_to_end
        before = after = 0  # Blocks of one prompt mostly have the same holders: they then share one integer.
        for block in reversed(hashes):
            if block in recent:
                move_to_end(block)
            else:
                held = holders.get(block, 0)
                if held != before or not after:
                    before, after = held, held | bit
                holders[block] = after
            recent[block] = stamp
        if len(recent) > capacity:
            for block, _ in recent.beyond(capacity):
                self._forget(block, bit)

    def halve(self) -> None:
        """Forget of each endpoint the half of its blocks that were used least recently."""
        for slot, recent in self._recent.items():
            for block, _ in recent.beyond(len(recent) // 2):
                self._forget(block, 1 << slot)

    def forget_unused_since(self, name: str, insertion: int) -> int:
        """Drop the endpoint's blocks that this insertion, or an earlier one, used last; how many there were."""
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return 0
        recent, bit, dropped = self._recent[slot], 1 << slot, 0
        for block, _ in recent.older(insertion.__ge__):
            self._forget(block, bit)
            dropped += 1
        return dropped

    def forget(self, name: str, hashes: Iterable[int]) -> int:
        """Drop these blocks of the endpoint, as far as it holds them; how many there were."""
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return 0
        recent, bit = self._recent[slot], 1 << slot
        held = [block for block in dict.fromkeys(hashes) if block in recent]
        for block in held:
            del recent[block]
            self._forget(block, bit)
        return len(held)

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint."""
        slot = self._slots.release(name)
        if slot is not None:
            for block in self._recent.pop(slot):
                self._forget(block, 1 << slot)

    def _slot(self, name: str) -> int:
        slot = self._slots.of(name)
        if slot not in self._recent:
            self._recent[slot] = Recency()
        return slot

    def _forget(self, block: int, bit: int) -> None:
        rest = self._holders[block] ^ bit
        if rest:
            self._holders[block] = rest
        else:
            del self._holders[block]


def credit(counts: FloatArray, slots: int, blocks: float) -> None:
    """Give the slots whose bits are set this many blocks: one by one while they are few, all at once when they are many."""
    if slots.bit_count() > _MANY:
        counts[chosen(slots, len(counts))] = blocks
        return
    while slots:
        lowest = slots & -slots
        counts[lowest.bit_length() - 1] = blocks
        slots ^= lowest


def chosen(slots: int, size: int) -> BoolArray:
    """The bits of a set of slots, as an array of `size` of them."""
    octets = np.frombuffer(slots.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, count=size, bitorder="little").view(np.bool_)
