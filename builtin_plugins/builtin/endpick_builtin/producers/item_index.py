"""Which endpoint was sent which items, whose order means nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from endpick.api.endpoints import FloatArray
from endpick_builtin.producers.endpoint_slots import EndpointSlots, chosen
from endpick_builtin.recency import Recency

_ITEM_BYTES = 150
"""Of an item at one endpoint."""
_HOLDERS_BYTES = 150
"""Of an item, beside the bits of half of the endpoints."""


FORGOTTEN_AT_ONCE = 4000


class ItemIndex:
    """The items that were sent to each endpoint, as far as its cache can still hold them."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """The endpoints that hold an item, as bits of their slots."""
        self._slots = EndpointSlots()
        self._recent: dict[int, Recency[int, None]] = {}
        self._held = 0
        """Items of all endpoints, each as often as it is held."""
        self._to_halve: list[int] | None = None

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `remove`."""
        found = [self._slots.of(name) for name in names]
        for slot in found:
            self._recent.setdefault(slot, Recency())
        return np.array(found, dtype=np.intp)

    def holders(self, item: int) -> int:
        """The endpoints that hold the item, as bits of their slots."""
        return self._holders.get(item, 0)

    def bit_of(self, name: str) -> int:
        """The bit of an endpoint's slot; 0 for an unknown one."""
        slot = self._slots.slot_of.get(name)
        return 0 if slot is None else 1 << slot

    def held_by_each(self, holders: Iterable[int]) -> FloatArray:
        """Of the items that are held like that, how many the endpoint of each slot holds. Shape `(slots,)`."""
        found = np.zeros(self._slots.count)
        for slots in holders:
            if slots & (slots - 1):
                found[chosen(slots, len(found))] += 1.0
            else:
                found[slots.bit_length() - 1] += 1.0
        return found

    def insert(self, name: str, items: Sequence[int], capacity: int) -> None:
        """Note that the endpoint now holds these items, and drop its least recently used ones beyond `capacity`.

        The first item counts as used last. An endpoint without a slot is ignored: it has left.
        """
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return
        recent, bit = self._recent[slot], 1 << slot
        before = len(recent)
        for item in reversed(items):
            self._holders[item] = self._holders.get(item, 0) | bit
            recent.use(item, None)
        for item, _ in recent.beyond(capacity):
            self._forget(item, bit)
        self._held += len(recent) - before

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint."""
        slot = self._slots.release(name)
        if slot is not None:
            recent, bit = self._recent.pop(slot), 1 << slot
            self._held -= len(recent)
            for item in recent:
                self._forget(item, bit)

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return self._held * _ITEM_BYTES + len(self._holders) * (_HOLDERS_BYTES + self._slots.count // 16)

    def halve(self) -> bool:
        """Forget, of each endpoint, some of the half that was used least recently; whether there is more of it."""
        if self._to_halve is None:
            self._to_halve = list(self._recent)
        least = self._held - FORGOTTEN_AT_ONCE
        while self._to_halve and self._held > least:
            slot = self._to_halve.pop()
            recent = self._recent.get(slot)
            if recent is None:
                continue
            bit = 1 << slot
            for item, _ in recent.half():
                self._forget(item, bit)
                self._held -= 1
        if self._to_halve:
            return True
        self._to_halve = None
        return False

    def _forget(self, item: int, bit: int) -> None:
        rest = self._holders[item] ^ bit
        if rest:
            self._holders[item] = rest
        else:
            del self._holders[item]
