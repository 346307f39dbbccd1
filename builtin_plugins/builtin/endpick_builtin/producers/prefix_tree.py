"""A radix tree of the prompts sent to each endpoint, as block fingerprints. Compiled, so it imports no plugin."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np

from endpick.api.endpoints import BoolArray, FloatArray
from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES

ALL_SLOTS: Final = -1
_MANY: Final = 12
_NO_LIMIT: Final = 1 << 62  # blocks
MAX_RESTORED_BYTES: Final = 1 << 25  # prompts together; a branch counts as one more block


class EndpointSlots:
    """Endpoints as bit positions; a set of them is an integer."""

    def __init__(self) -> None:
        self.slot_of: dict[str, int] = {}
        self.count = 0
        self._free: list[int] = []

    def of(self, name: str) -> int:
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
    """Convert a set of slots to a mask of shape `(size,)`."""
    octets = np.frombuffer(slots.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(octets, count=size, bitorder="little").view(np.bool_)


class _Branch:
    """A run of blocks without a fork.

    `holders` (bits) hold all blocks, `partly` has the leading blocks of others, and `uses` the last insertion, by slot.
    """

    __slots__ = ("blocks", "children", "holders", "length", "parent", "partly", "uses")

    def __init__(self, blocks: bytes, parent: _Branch | None) -> None:
        self.blocks = blocks
        self.length = len(blocks) // FINGERPRINT_BYTES
        self.parent = parent
        self.children: dict[bytes, _Branch] = {}
        self.holders = 0
        self.partly: dict[int, int] | None = None
        self.uses: dict[int, int] = {}

    def common(self, prompt: bytes, start: int) -> int:
        least, most = 1, min(self.length, (len(prompt) - start) // FINGERPRINT_BYTES)
        while least < most:
            middle = (least + most + 1) // 2
            if prompt.startswith(self.blocks[: middle * FINGERPRINT_BYTES], start):
                least = middle
            else:
                most = middle - 1
        return least

    def held(self, slot: int) -> int:
        if self.holders >> slot & 1:
            return self.length
        return 0 if self.partly is None else self.partly.get(slot, 0)

    def hold(self, slot: int, blocks: int) -> None:
        if blocks == self.length:
            self.holders |= 1 << slot
            if self.partly is not None:
                self.partly.pop(slot, None)
        else:
            self.holders &= ~(1 << slot)
            if self.partly is None:
                self.partly = {}
            self.partly[slot] = blocks

    def release(self, slot: int) -> int:
        blocks = self.held(slot)
        self.holders &= ~(1 << slot)
        if self.partly is not None:
            self.partly.pop(slot, None)
        del self.uses[slot]
        return blocks


class _Holdings:
    """The blocks of one endpoint.

    For each insertion, oldest first, `ends` has the deepest branch it used last; so it did the ancestors, up to one used later.
    """

    __slots__ = ("blocks", "ends")

    def __init__(self) -> None:
        self.blocks = 0
        self.ends: OrderedDict[int, _Branch] = OrderedDict()


class PrefixTree:
    """Prompts by endpoint; a prompt is its concatenated block fingerprints.

    An endpoint that holds a block holds all before it; the least recently used prompt is dropped first, from its end. Time is per branch,
    not per block.
    """

    def __init__(self) -> None:
        self._root = _Branch(b"", None)
        self._slots = EndpointSlots()
        self._holdings: dict[int, _Holdings] = {}
        self._insertions = 0

    @property
    def entries(self) -> int:
        return sum([holdings.blocks for holdings in self._holdings.values()])

    def blocks_by_endpoint(self) -> dict[str, int]:
        return {name: self._holdings[slot].blocks for name, slot in self._slots.slot_of.items() if slot in self._holdings}

    @property
    def width(self) -> int:
        return self._slots.count

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        found = [self._slots.of(name) for name in names]
        for slot in found:
            if slot not in self._holdings:
                self._holdings[slot] = _Holdings()
        return np.array(found, dtype=np.intp)

    def match(self, prompt: bytes) -> FloatArray:
        """Return how many leading blocks each slot's endpoint holds; shape `(slots,)`."""
        counts = np.zeros(self._slots.count)
        branch, start, depth, alive = self._root, 0, 0, ALL_SLOTS
        while alive:
            child = branch.children.get(prompt[start : start + FINGERPRINT_BYTES])
            if child is None:
                break
            common = child.length if prompt.startswith(child.blocks, start) else child.common(prompt, start)
            still = alive & child.holders
            if depth and still != alive:
                credit(counts, alive ^ still, depth)
            if child.partly is not None:
                for slot, blocks in child.partly.items():
                    if alive >> slot & 1:
                        counts[slot] = depth + min(blocks, common)
            alive, depth, branch = still, depth + common, child
            if common < child.length:
                break
            start += common * FINGERPRINT_BYTES
        if alive > 0:
            credit(counts, alive, depth)
        return counts

    def insert(self, name: str, prompt: bytes, capacity: int) -> None:
        """Record a prompt, and drop the least recently used blocks beyond `capacity`."""
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return
        holdings = self._holdings[slot]
        if not prompt:
            self._trim(slot, holdings, capacity)
            return
        self._insertions += 1
        now, ends = self._insertions, holdings.ends
        branch, start = self._root, 0
        while start < len(prompt):
            first = prompt[start : start + FINGERPRINT_BYTES]
            child = branch.children.get(first)
            if child is None:
                child = branch.children[first] = _Branch(prompt[start:], branch)
            elif not prompt.startswith(child.blocks, start):
                child = self._split(child, child.common(prompt, start))
            before = child.uses.get(slot)
            if before is None:
                holdings.blocks += child.length
                child.holders |= 1 << slot
            else:
                if ends.get(before) is child:
                    del ends[before]
                if not child.holders >> slot & 1:
                    holdings.blocks += child.length - child.held(slot)
                    child.hold(slot, child.length)
            child.uses[slot] = now
            branch, start = child, start + child.length * FINGERPRINT_BYTES
        ends[now] = branch
        if holdings.blocks > capacity:
            self._trim(slot, holdings, capacity)

    def uses(self, name: str, prompt: bytes) -> list[tuple[int, int]]:
        """Return the runs of blocks that the endpoint holds, as length and last insertion."""
        slot = self._slots.slot_of.get(name)
        found: list[tuple[int, int]] = []
        branch, start = self._root, 0
        while slot is not None:
            child = branch.children.get(prompt[start : start + FINGERPRINT_BYTES])
            if child is None or slot not in child.uses:
                break
            common = child.length if prompt.startswith(child.blocks, start) else child.common(prompt, start)
            found.append((min(common, child.held(slot)), child.uses[slot]))
            if common < child.length:
                break
            branch, start = child, start + common * FINGERPRINT_BYTES
        return found

    def forget_unused_since(self, name: str, insertion: int) -> int:
        """Drop blocks last used by this insertion or earlier; returns their number."""
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return 0
        holdings = self._holdings[slot]
        before = holdings.blocks
        while holdings.ends:
            use, end = next(iter(holdings.ends.items()))
            if use > insertion:
                break
            self._drop(end, slot, holdings)
        return before - holdings.blocks

    def forget(self, name: str, prompt: bytes, position: int) -> int:
        """Drop a prompt's blocks from this position on, and all after them; returns their number."""
        slot = self._slots.slot_of.get(name)
        branch, start, left = self._root, 0, position
        while slot is not None:
            child = branch.children.get(prompt[start : start + FINGERPRINT_BYTES])
            if child is None or slot not in child.uses:
                break
            common = child.length if prompt.startswith(child.blocks, start) else child.common(prompt, start)
            if left < common:
                if left:
                    rest = child.blocks[left * FINGERPRINT_BYTES :][:FINGERPRINT_BYTES]
                    child = self._split(child, left).children.get(rest)
                return self._drop_below(child, slot) if child is not None and slot in child.uses else 0
            if common < child.length:
                break
            branch, start, left = child, start + common * FINGERPRINT_BYTES, left - common
        return 0

    def names(self) -> list[str]:
        """Return the endpoints that hold at least one block."""
        return [name for name, blocks in self.blocks_by_endpoint().items() if blocks]

    def snapshot(self, name: str) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
        """Return the branches of an endpoint, and its insertions, oldest first.

        A branch is its parent's number and its blocks, an insertion a branch's number and its held blocks. Number 0 is the root.
        """
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return [], []
        numbers: dict[int, int] = {id(self._root): 0}
        branches: list[tuple[int, bytes]] = []
        insertions: list[tuple[int, int]] = []
        for end in self._holdings[slot].ends.values():
            path, branch = [], end
            while id(branch) not in numbers:
                path.append(branch)
                parent = branch.parent
                assert parent is not None
                branch = parent
            for branch in reversed(path):
                assert branch.parent is not None
                branches.append((numbers[id(branch.parent)], branch.blocks))
                numbers[id(branch)] = len(branches)
            insertions.append((numbers[id(end)], end.held(slot)))
        return branches, insertions

    def restore(self, name: str, branches: list[tuple[int, bytes]], insertions: list[tuple[int, int]]) -> None:
        """Insert the result of `snapshot`, if the endpoint has a slot; of very many prompts, the newest."""
        sizes = [0]
        for parent, blocks in branches:
            sizes.append(sizes[parent] + len(blocks) + FINGERPRINT_BYTES)
        first, left = len(insertions), MAX_RESTORED_BYTES
        while first and left >= sizes[insertions[first - 1][0]]:
            first -= 1
            left -= sizes[insertions[first][0]]
        for number, held in insertions[first:]:
            path: list[bytes] = []
            at = number
            while at > 0:
                parent, blocks = branches[at - 1]
                path.append(blocks if path else blocks[: held * FINGERPRINT_BYTES])
                at = parent
            path.reverse()
            self.insert(name, b"".join(path), _NO_LIMIT)

    def remove(self, name: str) -> None:
        slot = self._slots.release(name)
        if slot is not None:
            for branch in list(self._root.children.values()):
                if slot in branch.uses:
                    self._drop_below(branch, slot)
            del self._holdings[slot]

    def _split(self, branch: _Branch, length: int) -> _Branch:
        cut, parent = length * FINGERPRINT_BYTES, branch.parent
        assert parent is not None
        head = _Branch(branch.blocks[:cut], parent)
        parent.children[head.blocks[:FINGERPRINT_BYTES]] = head
        branch.blocks, branch.length, branch.parent = branch.blocks[cut:], branch.length - length, head
        head.children[branch.blocks[:FINGERPRINT_BYTES]] = branch
        head.holders, head.uses = branch.holders, dict(branch.uses)
        partly, branch.partly = branch.partly or {}, None
        for slot, blocks in partly.items():
            head.hold(slot, min(blocks, length))
            if blocks > length:
                branch.hold(slot, blocks - length)
            else:
                self._holdings[slot].ends[branch.uses.pop(slot)] = head
        self._prune(branch)
        return head

    def _trim(self, slot: int, holdings: _Holdings, capacity: int) -> None:
        while holdings.blocks > capacity:
            end = next(iter(holdings.ends.values()))
            blocks, excess = end.held(slot), holdings.blocks - capacity
            if blocks <= excess:
                self._drop(end, slot, holdings)
            else:
                end.hold(slot, blocks - excess)
                holdings.blocks -= excess

    def _drop(self, end: _Branch, slot: int, holdings: _Holdings) -> None:
        use, parent = end.uses[slot], end.parent
        assert parent is not None
        holdings.blocks -= end.release(slot)
        if parent.uses.get(slot) == use:
            holdings.ends[use] = parent
        else:
            del holdings.ends[use]
        self._prune(end)

    def _drop_below(self, branch: _Branch, slot: int) -> int:
        holdings = self._holdings[slot]
        before = holdings.blocks
        found, at = [branch], 0
        while at < len(found):
            found += [child for child in found[at].children.values() if slot in child.uses]
            at += 1
        for descendant in reversed(found):  # deepest first, so that a branch is the end of its insertion
            self._drop(descendant, slot, holdings)
        return before - holdings.blocks

    def _prune(self, branch: _Branch) -> None:
        if not branch.uses and branch.parent is not None:
            del branch.parent.children[branch.blocks[:FINGERPRINT_BYTES]]
