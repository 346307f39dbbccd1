"""The KV cache of one model server: counted blocks, and a prefix index whose idle blocks are evicted oldest first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A fixed number of KV blocks, shared by sequences that have the same prefix.

    A block is *in use* while a sequence holds it and *idle* otherwise. An idle block keeps its content, and stays in
    the prefix index, until a new block is needed and it is the one idle for longest.
    """

    __slots__ = ("_hashes", "_holders", "_idle", "_index", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks, given in sequence order.

        The tail becomes evictable before the head: a prefix is of use without its tail, a tail without its prefix is of none.
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
        self._holders[block] = 1
        return block
