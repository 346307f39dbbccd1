"""A scorer that raises, answers nonsense or blocks now and then, installed as a distribution of its own in a folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.siege.beat import install_plugin

_SOURCE = '''\
"""Unreliable on purpose."""

import time

import numpy as np
from siege_beat import ENTRY, TOLD

from endpick.api import Scorer


class Moody(Scorer):
    """Every ninth call raises, every eleventh answers NaN, every 3000th blocks for 60 ms; for some time of each minute every call fails.

    No picker can take the loop back from a plugin that blocks, so it blocks for less than a hundredth of the time: else it alone would be
    the 99th percentile.
    """

    calls = 0

    def score(self, request, endpoints, state):
        Moody.calls += 1
        if Moody.calls % 9 == 0 or self.context.clock() % 60 < 8:
            raise LookupError("in a mood")
        if Moody.calls % 11 == 0:
            return np.full(len(endpoints), np.nan)
        if Moody.calls % 3000 == 0:
            TOLD.write(ENTRY.pack(b"b", time.time(), 0.06, 0.0, 0.0))
            time.sleep(0.06)
        return np.ones(len(endpoints))
'''


def install(folder: Path) -> None:
    """As `siege.moody`, beside `siege.beat`; see `install_plugin`."""
    install_plugin(folder, "siege.moody", "Moody", _SOURCE)
