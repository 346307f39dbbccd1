"""Which endpoint was sent which beginning of a prompt: prompts cut into hashed blocks, and the index that remembers the blocks.

Plain data structures without any plugin, so that the compiled build can take them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from xxhash import xxh64_intdigest

from endpick.api.endpoints import FloatArray

BYTES_PER_TOKEN = 4
"""Where no tokenizer is at hand, four bytes of text count as one token."""


BYTES_PER_ENTRY = 200
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
    hashes = [previous := xxh64_intdigest(text[start : start + size], previous) for start in range(0, whole, size)]
    if whole < length:
        rest = text[whole:length]
        hashes.append(xxh64_intdigest(rest + bytes(-len(rest) % BYTES_PER_TOKEN), previous))
    return hashes


_ALL_SLOTS = -1
"""All bits set: the endpoints that may still hold the prompt before its first block was looked up."""
_MANY = 12


class PrefixIndex:
    """The blocks that were sent to each endpoint, as far as its cache can still hold them.

    An endpoint has a slot while it is known; the set of endpoints that hold a block is an integer with the bits of their slots. Walking
    a prompt then costs one dictionary look-up and one AND per block, however many endpoints there are.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._recent: dict[int, OrderedDict[int, None]] = {}
        self._free: list[int] = []

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
        counts = np.zeros(len(self._slots) + len(self._free))
        holders_of, alive = self._holders.get, _ALL_SLOTS
        for depth, block in enumerate(hashes):
            still = alive & holders_of(block, 0)
            if still != alive:
                if depth:
                    _credit(counts, alive ^ still, depth)
                alive = still
                if not still:
                    break
        if alive > 0:
            _credit(counts, alive, len(hashes))
        return counts

    def insert(self, name: str, hashes: Sequence[int], capacity: int) -> None:
        """Note that the endpoint now holds these blocks, and drop its least recently used ones beyond `capacity`.

        The last blocks count as used first, so that a prompt loses its end before its beginning, as in the engines. An endpoint
        without a slot is ignored: it has left.
        """
        slot = self._slots.get(name)
        if slot is None:
            return
        recent, holders, bit = self._recent[slot], self._holders, 1 << slot
        for block in reversed(hashes):
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(recent) > capacity:
            self._forget(recent.popitem(last=False)[0], bit)

    def halve(self) -> None:
        """Forget of each endpoint the half of its blocks that were used least recently."""
        for slot, recent in self._recent.items():
            for _ in range((len(recent) + 1) // 2):
                self._forget(recent.popitem(last=False)[0], 1 << slot)

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            for block in self._recent.pop(slot):
                self._forget(block, 1 << slot)
            self._free.append(slot)

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._slots)
            self._slots[name] = slot
            self._recent[slot] = OrderedDict()
        return slot

    def _forget(self, block: int, bit: int) -> None:
        rest = self._holders[block] ^ bit
        if rest:
            self._holders[block] = rest
        else:
            del self._holders[block]


def _credit(counts: FloatArray, slots: int, blocks: int) -> None:
    """Give the slots whose bits are set this many blocks: one by one while they are few, all at once when they are many."""
    if slots.bit_count() > _MANY:
        octets = np.frombuffer(slots.to_bytes((len(counts) + 7) // 8, "little"), dtype=np.uint8)
        counts[np.unpackbits(octets, count=len(counts), bitorder="little").view(np.bool_)] = blocks
        return
    while slots:
        lowest = slots & -slots
        counts[lowest.bit_length() - 1] = blocks
        slots ^= lowest
