"""Which endpoint was sent which items, whose order means nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from endpick.api.endpoints import FloatArray
from endpick_builtin.producers.endpoint_slots import EndpointSlots, credit
from endpick_builtin.recency import Recency


class ItemIndex:
    """The items that were sent to each endpoint, as far as its cache can still hold them."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """The endpoints that hold an item, as bits of their slots."""
        self._slots = EndpointSlots()
        self._recent: dict[int, Recency[int, None]] = {}

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `remove`."""
        found = [self._slots.of(name) for name in names]
        for slot in found:
            self._recent.setdefault(slot, Recency())
        return np.array(found, dtype=np.intp)

    def holders(self, item: int) -> FloatArray:
        """1 for the slot of each endpoint that holds the item. Shape `(slots,)`."""
        found = np.zeros(self._slots.count)
        credit(found, self._holders.get(item, 0), 1.0)
        return found

    def insert(self, name: str, items: Sequence[int], capacity: int) -> None:
        """Note that the endpoint now holds these items, and drop its least recently used ones beyond `capacity`.

        The first item counts as used last. An endpoint without a slot is ignored: it has left.
        """
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return
        recent, bit = self._recent[slot], 1 << slot
        for item in reversed(items):
            self._holders[item] = self._holders.get(item, 0) | bit
            recent.use(item, None)
        for item, _ in recent.beyond(capacity):
            self._forget(item, bit)

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint."""
        slot = self._slots.release(name)
        if slot is not None:
            for item in self._recent.pop(slot):
                self._forget(item, 1 << slot)

    def _forget(self, item: int, bit: int) -> None:
        rest = self._holders[item] ^ bit
        if rest:
            self._holders[item] = rest
        else:
            del self._holders[item]
