"""LoRA adapter slots of one model server: which adapters are in use, which are resident, and which one makes way."""

from __future__ import annotations

from collections import Counter, OrderedDict


class AdapterSlots:
    """At most `slots` adapters are resident; the least recently used one that no running sequence uses makes way."""

    __slots__ = ("_resident", "_users", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._users: Counter[str] = Counter()

    @property
    def in_use(self) -> tuple[str, ...]:
        """Adapters of running sequences, sorted."""
        return tuple(sorted(self._users))

    def has_room_for(self, adapter: str) -> bool:
        """Whether a sequence with this adapter could run now."""
        return adapter in self._users or len(self._users) < self.slots

    def acquire(self, adapter: str) -> bool:
        """Use the adapter for one more sequence; call only when there is room. True when it had to be loaded."""
        loaded = adapter not in self._resident
        if loaded and len(self._resident) == self.slots:
            del self._resident[next(name for name in self._resident if name not in self._users)]
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)
        self._users[adapter] += 1
        return loaded

    def release(self, adapter: str) -> None:
        """One sequence fewer uses the adapter; it stays resident until another needs its slot."""
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]
