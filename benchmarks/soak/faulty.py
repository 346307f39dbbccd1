"""A scorer that raises, returns NaN or blocks now and then, installed as its own distribution in a folder."""

from __future__ import annotations

from pathlib import Path

_SOURCE = '''\
import time

import numpy as np

from endpick.api import Scorer


class Faulty(Scorer):
    """Every ninth call raises, every eleventh returns NaN, every 3000th blocks for 60 ms; for 8 s of each minute every call raises."""

    calls = 0

    def score(self, request, endpoints, state):
        Faulty.calls += 1
        if Faulty.calls % 9 == 0 or self.context.clock() % 60 < 8:
            raise LookupError("on purpose")
        if Faulty.calls % 11 == 0:
            return np.full(len(endpoints), np.nan)
        if Faulty.calls % 3000 == 0:
            time.sleep(0.06)
        return np.ones(len(endpoints))
'''


def install(folder: Path) -> None:
    """Write the module and its metadata; put the folder on PYTHONPATH afterwards."""
    information = folder / "soak_faulty-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "soak_faulty.py").write_text(_SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: soak-faulty\nVersion: 1.0\nRequires-Dist: endpick\n")
    (information / "entry_points.txt").write_text("[endpick.plugins.v1]\nsoak.faulty = soak_faulty:Faulty\n")
