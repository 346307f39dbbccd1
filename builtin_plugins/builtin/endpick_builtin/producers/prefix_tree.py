"""Which endpoint was sent which beginning of a prompt: a tree of all prompts, in which common beginnings are common branches.

A plain data structure without any plugin, so that the compiled build can take it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np

from endpick.api.endpoints import FloatArray
from endpick_builtin.producers.endpoint_slots import ALL_SLOTS, EndpointSlots, credit
from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES

_BRANCH_BYTES: Final = 600
"""What a branch takes beside its blocks, with one endpoint that holds it, measured."""
_HOLDER_BYTES: Final = 130
"""What each further endpoint adds to a branch, measured."""
_LEAVING_AT_ONCE: Final = 1000
"""Branches of an endpoint that leaves which are forgotten at that moment: some 3 ms. It may have had thirty times as many."""
_LEAVING_WITH_EACH: Final = 32
"""Those that are forgotten with each prompt that is noted from then on."""


class _Branch:
    """Blocks that follow one another: every prompt that comes to the first of them has gone the same way before.

    Attributes:
        blocks: Their fingerprints, one after the other. Empty for the root alone.
        length: How many they are.
        parent: The branch before; None for the root.
        children: The branches after, by the fingerprint of their first block.
        holders: The slots of the endpoints that hold all its blocks, as bits.
        partly: How many of its blocks endpoints hold that do not hold all, by slot.
        uses: The insertion that last used it at each endpoint that holds any of its blocks, by slot.
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
        """How many of its blocks the prompt has from byte `start` on, where it has the first; for those that have not all of them."""
        least, most = 1, min(self.length, (len(prompt) - start) // FINGERPRINT_BYTES)
        while least < most:
            middle = (least + most + 1) // 2
            if prompt.startswith(self.blocks[: middle * FINGERPRINT_BYTES], start):
                least = middle
            else:
                most = middle - 1
        return least

    def held(self, slot: int) -> int:
        """How many of its blocks the endpoint holds."""
        if self.holders >> slot & 1:
            return self.length
        return 0 if self.partly is None else self.partly.get(slot, 0)

    def hold(self, slot: int, blocks: int) -> None:
        """The endpoint holds so many of its blocks."""
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
        """The endpoint holds none of its blocks any more; how many it held."""
        blocks = self.held(slot)
        self.holders &= ~(1 << slot)
        if self.partly is not None:
            self.partly.pop(slot, None)
        del self.uses[slot]
        return blocks


class _Holdings:
    """What one endpoint holds.

    Attributes:
        blocks: How many blocks.
        ends: For each insertion of which anything is left, the oldest first, the last branch that it was the last to use. The others that
            it was the last to use are those before that one, up to the first that was used later.
    """

    __slots__ = ("blocks", "ends")

    def __init__(self) -> None:
        self.blocks = 0
        self.ends: OrderedDict[int, _Branch] = OrderedDict()


class PrefixTree:
    """The prompts that were sent to each endpoint, as far as its cache can still hold them.

    Prompts are the fingerprints of their blocks, see `fingerprints`. What is done with one costs the branches on its way, which are
    few, and hardly more for a prompt of a thousand blocks than for one of ten.

    An endpoint that holds a block holds all before it. What makes room is what was used least recently, and of a prompt its end before its
    beginning, as in the engines: so what is left of a prompt is always a beginning of it.
    """

    def __init__(self) -> None:
        self._root = _Branch(b"", None)
        self._slots = EndpointSlots()
        self._holdings: dict[int, _Holdings] = {}
        self._goals: dict[int, int] = {}
        """How many blocks are to be left to each slot that is still to be halved."""
        self._leaving: list[int] = []
        """Slots of endpoints that have left, of whose branches some are still to be forgotten."""
        self._insertions = 0
        self._branches = 0
        self._blocks = 0
        self._places = 0

    @property
    def entries(self) -> int:
        """Blocks held, counted once for each endpoint that holds them."""
        return sum([holdings.blocks for holdings in self._holdings.values()])

    @property
    def width(self) -> int:
        """Slots there are, taken or free."""
        return self._slots.count

    @property
    def size_bytes(self) -> int:
        """What the tree takes, about."""
        return self._branches * _BRANCH_BYTES + (self._places - self._branches) * _HOLDER_BYTES + self._blocks * FINGERPRINT_BYTES

    def slots(self, names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The slot of each of these endpoints; unknown ones get one, and keep it until `remove`."""
        found = [self._slots.of(name) for name in names]
        for slot in found:
            if slot not in self._holdings:
                self._holdings[slot] = _Holdings()
        return np.array(found, dtype=np.intp)

    def match(self, prompt: bytes) -> FloatArray:
        """How many blocks of the prompt, from the first one on, the endpoint of each slot holds. Shape `(slots,)`."""
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
        """Note that the endpoint now holds this prompt, and drop its least recently used blocks beyond `capacity`.

        An endpoint without a slot is ignored: it has left.
        """
        if self._leaving:
            self._forget_leaving(_LEAVING_WITH_EACH)
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
                self._branches += 1
                self._blocks += child.length
            elif not prompt.startswith(child.blocks, start):
                child = self._split(child, child.common(prompt, start))
            before = child.uses.get(slot)
            if before is None:
                self._places += 1
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
        """What the endpoint holds of a prompt, in stretches: how many blocks, and the insertion that last used them; lower is earlier."""
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

    def halve(self, most: int) -> bool:
        """Forget of each endpoint the half of its blocks that were used least recently, in parts.

        Args:
            most: Steps of this part; each drops what one insertion was the last to use, or a branch of that.

        Returns:
            Whether there is more to do, in the next call.
        """
        if self._leaving:
            self._forget_leaving(most)
            return True
        if not self._goals:
            self._goals = {slot: holdings.blocks // 2 for slot, holdings in self._holdings.items()}
        left = most
        while left > 0 and self._goals:
            slot, goal = next(iter(self._goals.items()))
            holdings = self._holdings.get(slot)
            if holdings is not None:
                left -= self._trim(slot, holdings, goal, left)
            if holdings is None or holdings.blocks <= goal:
                del self._goals[slot]
        return bool(self._goals)

    def forget_unused_since(self, name: str, insertion: int) -> int:
        """Drop the endpoint's blocks that this insertion, or an earlier one, used last; how many there were."""
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
        """Drop what the endpoint holds of a prompt from this block on, and whatever goes on from there; how many blocks there were."""
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
                return self._drop_whole(child, slot) if child is not None and slot in child.uses else 0
            if common < child.length:
                break
            branch, start, left = child, start + common * FINGERPRINT_BYTES, left - common
        return 0

    def remove(self, name: str) -> None:
        """Forget everything about an endpoint: some of it now, the rest in parts, so that nothing waits for it."""
        slot = self._slots.retire(name)
        if slot is not None:
            self._leaving.append(slot)
            self._forget_leaving(_LEAVING_AT_ONCE)

    def _forget_leaving(self, most: int) -> None:
        """Forget up to so many branches of endpoints that have left."""
        for _ in range(most):
            if not self._leaving:
                break
            slot = self._leaving[0]
            holdings = self._holdings[slot]
            if holdings.ends:
                self._drop(next(iter(holdings.ends.values())), slot, holdings)
            else:
                del self._holdings[slot], self._leaving[0]
                self._slots.free(slot)

    def _split(self, branch: _Branch, length: int) -> _Branch:
        """Make two of a branch: the first has so many of its blocks, and is returned."""
        cut, parent = length * FINGERPRINT_BYTES, branch.parent
        assert parent is not None
        head = _Branch(branch.blocks[:cut], parent)
        parent.children[head.blocks[:FINGERPRINT_BYTES]] = head
        branch.blocks, branch.length, branch.parent = branch.blocks[cut:], branch.length - length, head
        head.children[branch.blocks[:FINGERPRINT_BYTES]] = branch
        head.holders, head.uses = branch.holders, dict(branch.uses)
        self._branches += 1
        self._places += len(head.uses)
        partly, branch.partly = branch.partly or {}, None
        for slot, blocks in partly.items():
            head.hold(slot, min(blocks, length))
            if blocks > length:
                branch.hold(slot, blocks - length)
            else:
                self._places -= 1
                self._holdings[slot].ends[branch.uses.pop(slot)] = head
        self._prune(branch)
        return head

    def _trim(self, slot: int, holdings: _Holdings, capacity: int, most: int = sys.maxsize) -> int:
        """Drop what the endpoint used least recently, until it holds no more blocks than that or so many steps are done; how many were."""
        steps = 0
        while holdings.blocks > capacity and steps < most:
            steps += 1
            end = next(iter(holdings.ends.values()))
            blocks, excess = end.held(slot), holdings.blocks - capacity
            if blocks <= excess:
                self._drop(end, slot, holdings)
            else:
                end.hold(slot, blocks - excess)
                holdings.blocks -= excess
        return steps

    def _drop(self, end: _Branch, slot: int, holdings: _Holdings) -> None:
        """Forget the last branch that an insertion was the last to use."""
        use, parent = end.uses[slot], end.parent
        assert parent is not None
        holdings.blocks -= end.release(slot)
        self._places -= 1
        if parent.uses.get(slot) == use:
            holdings.ends[use] = parent
        else:
            del holdings.ends[use]
        self._prune(end)

    def _drop_whole(self, branch: _Branch, slot: int) -> int:
        """Forget a branch and all that follow it; how many blocks of them the endpoint held."""
        holdings = self._holdings[slot]
        before = holdings.blocks
        found, at = [branch], 0
        while at < len(found):
            found += [child for child in found[at].children.values() if slot in child.uses]
            at += 1
        # The last first: each is then the end of the insertion that used it last.
        for each in reversed(found):
            self._drop(each, slot, holdings)
        return before - holdings.blocks

    def _prune(self, branch: _Branch) -> None:
        """Take a branch away that no endpoint holds; those after it have gone before."""
        if not branch.uses and branch.parent is not None:
            del branch.parent.children[branch.blocks[:FINGERPRINT_BYTES]]
            self._branches -= 1
            self._blocks -= branch.length
