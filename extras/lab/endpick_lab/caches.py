"""A model server's memory: KV blocks with a prefix index, and LoRA adapter slots."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol


class BlockWatcher(Protocol):
    """Receives changes of a prefix index."""

    def stored(self, chained: int) -> None:
        """Called when a block has been added to the prefix index."""

    def removed(self, chained: int) -> None:
        """Called when a block has been evicted from the prefix index."""


class BlockPool:
    """KV blocks, shared by sequences with the same prefix.

    A block is *idle* while no sequence holds it. It stays in the prefix index until it is evicted, the longest idle first.
    """

    __slots__ = ("_hashes", "_holders", "_idle", "_index", "_watcher", "capacity")

    def __init__(self, capacity: int, watcher: BlockWatcher | None = None) -> None:
        self.capacity = capacity
        self._watcher = watcher
        self._holders = [0] * capacity
        self._hashes: list[int | None] = [None] * capacity
        self._index: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(capacity))

    @property
    def in_use(self) -> int:
        """Blocks held by a sequence."""
        return self.capacity - len(self._idle)

    @property
    def idle(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks in the prefix index."""
        return len(self._index)

    def match(self, hashes: Sequence[int]) -> list[int]:
        """Return the blocks of the longest cached prefix, without holding them."""
        found: list[int] = []
        for chained in hashes:
            block = self._index.get(chained)
            if block is None:
                break
            found.append(block)
        return found

    def claim(self, shared: Sequence[int], fresh: int) -> list[int] | None:
        """Hold the `shared` blocks and `fresh` new ones; None, without changes, if too few are idle."""
        revived = sum(1 for block in shared if not self._holders[block])
        if len(self._idle) - revived < fresh:
            return None
        for block in shared:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1
        return [*shared, *(self._evict_oldest() for _ in range(fresh))]

    def publish(self, block: int, chained_hash: int) -> None:
        """Add a filled block to the prefix index, unless its content is in it."""
        if chained_hash not in self._index:
            self._index[chained_hash] = block
            self._hashes[block] = chained_hash
            if self._watcher is not None:
                self._watcher.stored(chained_hash)

    def release(self, blocks: Sequence[int]) -> None:
        """Release a sequence's blocks; evicts the tail first, because only a prefix is useful alone."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            self._idle[block] = None
            if self._hashes[block] is None:
                self._idle.move_to_end(block, last=False)

    def _evict_oldest(self) -> int:
        block, _ = self._idle.popitem(last=False)
        chained_hash = self._hashes[block]
        if chained_hash is not None:
            del self._index[chained_hash]
            self._hashes[block] = None
            if self._watcher is not None:
                self._watcher.removed(chained_hash)
        self._holders[block] = 1
        return block


class AdapterSlots:
    """At most `slots` resident adapters; evicts the least recently used idle one."""

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
        """Return whether a sequence with this adapter could run."""
        return adapter in self._users or len(self._users) < self.slots

    def acquire(self, adapter: str) -> bool:
        """Use the adapter once more, if there is room; True if it had to be loaded."""
        loaded = adapter not in self._resident
        if loaded and len(self._resident) == self.slots:
            del self._resident[next(name for name in self._resident if name not in self._users)]
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)
        self._users[adapter] += 1
        return loaded

    def release(self, adapter: str) -> None:
        """End one use; the adapter stays resident."""
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]
