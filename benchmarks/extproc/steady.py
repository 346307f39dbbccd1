"""A gateway that behaves, at a rate that leaves the picker time: for percentiles, which a closed loop without pauses has none of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from benchmarks.extproc.phased import Gateway, Phase


class Steady(Gateway):
    """A gateway that behaves: every request to its end, with pauses."""

    def __init__(
        self, scripts: Sequence[Sequence[Phase]], rng: random.Random, picks: list[float], streams: int, pause_seconds: float
    ) -> None:
        super().__init__(self.choose, streams, picks)
        self._scripts = scripts
        self._rng = rng
        self._pause_seconds = pause_seconds
        self.retiring = False

    def choose(self) -> Sequence[Phase]:
        """What the next request says."""
        return self._rng.choice(self._scripts)

    def proceed(self) -> None:
        if not self.retiring:
            asyncio.get_running_loop().call_later(self._rng.uniform(0, 2 * self._pause_seconds), self._open_later)

    def _open_later(self) -> None:
        if not self.retiring and not self.lost:
            self.open()
            self.flush()
