"""Sets of endpoints as integers, one bit per endpoint. Compiled, so it imports no plugin."""

from __future__ import annotations

from typing import Final

import numpy as np

from endpick.api.endpoints import BoolArray, FloatArray

ALL_SLOTS: Final = -1
_MANY: Final = 12


class EndpointSlots:
    """Bit positions of endpoints."""

    def __init__(self) -> None:
        self.slot_of: dict[str, int] = {}
        self.count = 0
        self._free: list[int] = []

    def of(self, name: str) -> int:
        """The endpoint's slot, which it keeps until `release`."""
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
        """Free the endpoint's slot, and return it."""
        slot = self.slot_of.pop(name, None)
        if slot is not None:
            self._free.append(slot)
        return slot


def credit(counts: FloatArray, slots: int, blocks: float) -> None:
    """Set `counts` to `blocks` at these slots."""
    if slots.bit_count() > _MANY:
        counts[chosen(slots, len(counts))] = blocks
        return
    while slots:
        lowest = slots & -slots
        counts[lowest.bit_length() - 1] = blocks
        slots ^= lowest


def chosen(slots: int, size: int) -> BoolArray:
    """A set of slots as a mask of shape `(size,)`."""
    octets = np.frombuffer(slots.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, count=size, bitorder="little").view(np.bool_)
