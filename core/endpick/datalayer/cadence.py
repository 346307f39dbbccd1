"""When each polling source of an endpoint is due: whole ticks of one base interval, so that one timer serves all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST_TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cadence:
    """The base tick, and how many of them each source waits."""

    tick_seconds: float
    every: tuple[int, ...]
    """For each source, in the order given to `cadence_of`."""

    def due(self, tick: int) -> tuple[int, ...]:
        """Positions of the sources to poll at this tick, counted from 1. Tick 1 polls everybody."""
        return tuple(position for position, every in enumerate(self.every) if (tick - 1) % every == 0)


def cadence_of(refresh_interval_seconds: float, intervals: Iterable[float | None]) -> Cadence:
    """The cadence of sources with these intervals; None follows the refresh interval.

    The tick is the shortest interval asked for, but never under 50 ms; every other interval is rounded to a whole number of ticks.
    """
    wanted = tuple(refresh_interval_seconds if interval is None else interval for interval in intervals)
    tick = max(SHORTEST_TICK_SECONDS, min((refresh_interval_seconds, *wanted)))
    return Cadence(tick, tuple(max(1, round(interval / tick)) for interval in wanted))


class PhaseSequence:
    """Spreads endpoints over the tick, however many there are and whenever they come, so that they are not all polled at once."""

    _GOLDEN_RATIO = 0.6180339887498949

    def __init__(self) -> None:
        self._last = 0.0

    def next(self) -> float:
        """A share of the tick, 0 to 1, far from those given before."""
        self._last = (self._last + self._GOLDEN_RATIO) % 1.0
        return self._last
