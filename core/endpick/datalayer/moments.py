"""At which moments of a tick endpoints are polled: few moments, because waking costs, and small groups, because requests wait for them."""

from __future__ import annotations

import math


class PhaseSequence:
    """Spreads endpoints over the tick, however many there are and whenever they come, in groups that are polled together.

    Each time the process wakes costs more than a poll does, so endpoints share a few moments of the tick; groups stay small, because
    requests wait for them.
    """

    _GOLDEN_RATIO = 0.6180339887498949
    _GROUP = 8
    _FEWEST_MOMENTS = 4

    def __init__(self) -> None:
        self._last = 0.0

    def next(self, endpoints: int) -> float:
        """A share of the tick, 0 to 1, far from those given before, in a pool of so many; a larger one has these moments and others."""
        self._last = (self._last + self._GOLDEN_RATIO) % 1.0
        moments = self._FEWEST_MOMENTS
        while moments * self._GROUP < endpoints:
            moments *= 2
        return math.floor(self._last * moments) / moments


def first_at(now: float, tick_seconds: float, phase: float) -> float:
    """When an endpoint has its turn next: half a tick from now at the earliest, and at the same moment as others of its phase."""
    ticks = math.ceil((now + tick_seconds / 2) / tick_seconds - phase)
    return (ticks + phase) * tick_seconds
