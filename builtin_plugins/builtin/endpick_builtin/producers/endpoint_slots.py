"""Sets of endpoints as integers, for indexes that ask of each block who holds it.

Plain data structures without any plugin, so that the compiled build can take them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from endpick.api.endpoints import BoolArray, FloatArray

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

    def retire(self, name: str) -> int | None:
        """The endpoint has its slot no more, but no other gets it before `free`: something is known of it still. Which it was."""
        return self.slot_of.pop(name, None)

    def free(self, slot: int) -> None:
        """Give a slot that was retired to the next endpoint that needs any."""
        self._free.append(slot)


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
