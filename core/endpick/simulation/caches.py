"""What one model server keeps in memory: counted KV blocks with a prefix index, and LoRA adapter slots."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol


class BlockWatcher(Protocol):
    """Is told what the prefix index of a pool gains and loses."""

    def stored(self, chained: int) -> None:
        """A block with this content can be shared from now on."""

    def removed(self, chained: int) -> None:
        """It no longer can."""


class BlockPool:
    """A fixed number of KV blocks, shared by sequences that have the same prefix.

    A block is *in use* while a sequence holds it and *idle* otherwise. An idle block keeps its content, and stays in
    the prefix index, until a new block is needed and it is the one idle for longest.
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
        """Blocks held by at least one sequence."""
        return self.capacity - len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks, in use or idle, that a new sequence with the same prefix could share."""
        return len(self._index)

    def match(self, hashes: Sequence[int]) -> list[int]:
        """The blocks that hold the longest cached prefix of `hashes`; takes nothing."""
        found: list[int] = []
        for chained in hashes:
            block = self._index.get(chained)
            if block is None:
                break
            found.append(block)
        return found

    def claim(self, shared: Sequence[int], fresh: int) -> list[int] | None:
        """Hold the `shared` blocks and `fresh` new ones; with too few idle blocks, change nothing and return None."""
        revived = sum(1 for block in shared if not self._holders[block])
        if len(self._idle) - revived < fresh:
            return None
        for block in shared:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1
        return [*shared, *(self._evict_oldest() for _ in range(fresh))]

    def publish(self, block: int, chained_hash: int) -> None:
        """Offer a filled block to later sequences. The first copy of a content is the one that is shared."""
        if chained_hash not in self._index:
            self._index[chained_hash] = block
            self._hashes[block] = chained_hash
            if self._watcher is not None:
                self._watcher.stored(chained_hash)

    def release(self, blocks: Sequence[int]) -> None:
        """Stop holding a sequence's blocks, given in sequence order.

        The tail becomes evictable before the head: a prefix is useful without its tail, but not a tail without its prefix.
        """
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
    """At most `slots` adapters are resident; to make room, the least recently used one that no running sequence uses is unloaded."""

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
