"""Groups the requests of a burst by prompt, and assigns each group to endpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One request of a burst, with chained block hashes of its prompt."""

    hashes: tuple[int, ...]
    candidates: frozenset[str]
    weight: float = 1.0


def units_of(members: Sequence[Member], min_colocate_blocks: int) -> list[list[int]]:
    """The groups to place, as positions of their members: first equal prompts, then single ones, longer prompts first.

    A single prompt is placed if it shares at least `min_colocate_blocks` leading blocks with another one; never if that is 0.
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
    """Assign an endpoint to each member; None without a group, or without an endpoint that the whole group may use.

    `max_per_replica` splits a group into parts; once every endpoint has a part, the rest is spread one by one. The first part goes to
    the endpoint with the longest common prefix of at least `min_colocate_blocks`, among endpoints below the fair share,
    ceil(total load / endpoints); other parts go to endpoints without a part. Ties are broken by load, running requests and name.

    Args:
        members: In order of arrival.
        running: Running requests by endpoint; 0 if missing.
        max_per_replica: Members of one group per endpoint; -1 for all.
        min_colocate_blocks: 0: only equal prompts are grouped.
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
    def __init__(self, names: Sequence[str], running: Mapping[str, float], min_colocate_blocks: int, fair_share: int) -> None:
        self.loads = dict.fromkeys(names, 0.0)
        self._bits = {name: 1 << place for place, name in enumerate(names)}
        self._names = names
        self._holders: dict[int, int] = {}
        """Endpoints by block, as bits."""
        self._running = running
        self._min_colocate_blocks = min_colocate_blocks
        self._fair_share = fair_share

    def place(self, names: Collection[str], hashes: Sequence[int]) -> None:
        bits = sum(map(self._bits.__getitem__, names))
        if bits and self._min_colocate_blocks > 0:
            holders = self._holders
            for block in hashes:
                holders[block] = holders.get(block, 0) | bits

    def sharing(self, names: Collection[str], hashes: Sequence[int]) -> str | None:
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
        return min(names, key=self._burden)

    def _burden(self, name: str) -> tuple[float, float, str]:
        return self.loads[name], self._running.get(name, 0.0), name
