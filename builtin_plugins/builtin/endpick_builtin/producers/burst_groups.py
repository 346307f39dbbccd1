"""Which requests of a burst belong together, and where each group goes: pure functions over hashed prompts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One request of a burst.

    Attributes:
        hashes: Of its prompt's blocks, in a chain: an equal hash means an equal beginning.
        candidates: Names of the endpoints that may serve it.
        weight: What it counts for in a replica's load.
    """

    hashes: tuple[int, ...]
    candidates: frozenset[str]
    weight: float = 1.0


def units_of(members: Sequence[Member], min_colocate_blocks: int) -> list[list[int]]:
    """The groups that are placed, as positions of their members: equal prompts first, then single ones, longer prompts first.

    A single prompt is placed when it shares at least `min_colocate_blocks` leading blocks with another one; never if that is 0. A
    prompt without blocks is in no group.
    """
    equal: dict[tuple[int, ...], list[int]] = {}
    for position, member in enumerate(members):
        if member.hashes:
            equal.setdefault(member.hashes, []).append(position)
    groups = [group for group in equal.values() if len(group) > 1]
    singles: list[list[int]] = []
    if min_colocate_blocks > 0:
        beginnings = Counter(member.hashes[min_colocate_blocks - 1] for member in members if len(member.hashes) >= min_colocate_blocks)
        singles = [
            group
            for hashes, group in equal.items()
            if len(group) == 1 and len(hashes) >= min_colocate_blocks and beginnings[hashes[min_colocate_blocks - 1]] > 1
        ]
    longest_first = [sorted(each, key=lambda group: -len(members[group[0]].hashes)) for each in (groups, singles)]
    return longest_first[0] + longest_first[1]


def assigned(
    members: Sequence[Member], running: Mapping[str, float], *, max_per_replica: int = -1, min_colocate_blocks: int = 0
) -> list[str | None]:
    """The endpoint of each member; None for one that belongs to no group, or whose group has no endpoint in common.

    A group stays whole, unless `max_per_replica` cuts it into parts; what is left when every endpoint has had a part is spread one by
    one. The first part goes where the longest beginning of `min_colocate_blocks` or more in common with it was placed, among endpoints
    whose load is less than the fair share of the burst, ceil(load of all / endpoints). Where there is none, and for further parts, it is
    an endpoint that has no part of the group yet. Then the least load of this burst decides, the fewest running requests, the first name.

    Args:
        members: In the order in which they came.
        running: Requests that each endpoint is working on; those that are missing run none.
        max_per_replica: Members of one group at one endpoint, -1 for all.
        min_colocate_blocks: 0: groups do not attract each other, and only groups of equal prompts are placed.
    """
    answer: list[str | None] = [None] * len(members)
    units = units_of(members, min_colocate_blocks)
    names = frozenset[str]().union(*(member.candidates for member in members))
    placed = sum(members[position].weight for unit in units for position in unit)
    burst = _Burst(sorted(names), running, min_colocate_blocks, math.ceil(placed / len(names)) if names else 0)
    for unit in units:
        common = frozenset[str].intersection(*(members[position].candidates for position in unit))
        size = max_per_replica if max_per_replica > 0 else len(unit)
        hashes = members[unit[0]].hashes
        unused, start = common, 0
        while common and start < len(unit):
            part = unit[start : start + (size if unused else 1)]
            chosen = (burst.sharing(common, hashes) if not start else None) or burst.least_loaded(unused or common)
            unused -= {chosen}
            start += len(part)
            burst.loads[chosen] += sum(members[position].weight for position in part)
            for position in part:
                answer[position] = chosen
        burst.place(common - unused, hashes)
    return answer


class _Burst:
    """What each endpoint has been given of the burst so far, and by what they are compared."""

    def __init__(self, names: Sequence[str], running: Mapping[str, float], min_colocate_blocks: int, fair_share: int) -> None:
        self.loads = dict.fromkeys(names, 0.0)
        self._bits = {name: 1 << place for place, name in enumerate(names)}
        self._names = names
        self._holders: dict[int, int] = {}
        """The endpoints that were given a block, as bits: a prompt is looked up for all of them in one go."""
        self._running = running
        self._min_colocate_blocks = min_colocate_blocks
        self._fair_share = fair_share

    def place(self, names: Collection[str], hashes: Sequence[int]) -> None:
        """These endpoints were given a prompt of these blocks."""
        bits = sum(map(self._bits.__getitem__, names))
        if bits and self._min_colocate_blocks > 0:
            holders = self._holders
            for block in hashes:
                holders[block] = holders.get(block, 0) | bits

    def sharing(self, names: Collection[str], hashes: Sequence[int]) -> str | None:
        """The one that has most of this prompt's beginning, if one has enough of it and less than its fair share."""
        if self._min_colocate_blocks <= 0:
            return None
        found, shared = 0, 0
        still = sum(self._bits[name] for name in names if self.loads[name] < self._fair_share)
        for block in hashes:
            still &= self._holders.get(block, 0)
            if not still:
                break
            found = still
            shared += 1
        return min(self._named(found), key=self._burden, default=None) if shared >= self._min_colocate_blocks else None

    def _named(self, bits: int) -> Iterator[str]:
        while bits:
            lowest = bits & -bits
            yield self._names[lowest.bit_length() - 1]
            bits ^= lowest

    def least_loaded(self, names: Collection[str]) -> str:
        """The one with the least to do; there is at least one."""
        return min(names, key=self._burden)

    def _burden(self, name: str) -> tuple[float, float, str]:
        return self.loads[name], self._running.get(name, 0.0), name
