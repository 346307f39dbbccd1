"""Where slow picks spent their time: what the event loop of the picker was doing between their beginning and their end."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ENTRY = struct.Struct("=cdddd")
"""What `beat` and `moody` write, see there: a letter, the time of the system, three numbers."""
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one pick, or of several."""

    ran: float = 0.0
    """The event loop's thread had a processor: it worked on this request and on whatever came before."""
    waited: float = 0.0
    """It was ready to run, and no processor was free: the machine's, not the picker's."""
    blocked: float = 0.0
    """The plugin that blocks on purpose did."""
    collected: float = 0.0
    """Of what it ran: garbage collections."""
    rest: float = 0.0
    """Neither: it slept, or another thread had Python's lock."""

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class Timeline:
    """What `beat` and `moody` wrote down: a beat a millisecond, and each block and collection."""

    def __init__(self, path: Path) -> None:
        told = path.read_bytes()
        entries = list(ENTRY.iter_unpack(told[: len(told) // ENTRY.size * ENTRY.size]))
        self._beats = sorted(entry[1:4] for entry in entries if entry[0] == b"t")
        self._times = [at for at, _, _ in self._beats]
        self.blocks: list[Interval] = sorted((at, at + took) for kind, at, took, *_ in entries if kind == b"b")
        self.collections: list[Interval] = sorted((at, at + took) for kind, at, took, *_ in entries if kind == b"g")

    def spent(self, pick: Interval) -> Spent:
        """What a pick waited for."""
        ran = waited = 0.0
        for part, cpu, delay in self._turns(pick):
            ran += part * cpu
            waited += part * delay
        blocked = _within(pick, self.blocks)
        rest = max(0.0, pick[1] - pick[0] - ran - waited - blocked)
        return Spent(ran, waited, blocked, _within(pick, self.collections), rest)

    def is_blocked(self, pick: Interval) -> bool:
        """Whether the blocking plugin held the loop meanwhile."""
        return _within(pick, self.blocks) > 0.0

    def longest_turn_seconds(self) -> float:
        """Of processor time, between two beats."""
        return max((after[1] - before[1] for before, after in pairwise(self._beats)), default=0.0)

    def _turns(self, pick: Interval) -> Iterator[tuple[float, float, float]]:
        """Of each stretch between two beats: the share of it that lies in the pick, its processor time, and its wait for one."""
        index = max(1, bisect_left(self._times, pick[0]))
        while index < len(self._beats) and self._times[index - 1] < pick[1]:
            (begun, cpu, delay), (ended, cpu_after, delay_after) = self._beats[index - 1], self._beats[index]
            inside = min(pick[1], ended) - max(pick[0], begun)
            if inside > 0 and cpu_after >= cpu:
                yield inside / (ended - begun), cpu_after - cpu, delay_after - delay
            index += 1


def _within(pick: Interval, events: Sequence[Interval]) -> float:
    last = bisect_left(events, (pick[1], 0.0))
    return sum(max(0.0, min(pick[1], end) - max(pick[0], begin)) for begin, end in events[max(0, last - 50) : last])
