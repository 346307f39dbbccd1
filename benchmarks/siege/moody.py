"""A scorer that raises, answers nonsense or blocks now and then, installed as a distribution of its own in a folder."""

from __future__ import annotations

from pathlib import Path

_SOURCE = '''\
"""Unreliable on purpose."""

import time

import numpy as np

from endpick.api import Scorer


class Moody(Scorer):
    """Every ninth call raises, every eleventh answers NaN, every 997th blocks for 60 ms; for some time of each minute every call fails."""

    calls = 0

    def score(self, request, endpoints, state):
        Moody.calls += 1
        if Moody.calls % 9 == 0 or self.context.clock() % 60 < 8:
            raise LookupError("in a mood")
        if Moody.calls % 11 == 0:
            return np.full(len(endpoints), np.nan)
        if Moody.calls % 997 == 0:
            time.sleep(0.06)
        return np.ones(len(endpoints))
'''
_METADATA = "Metadata-Version: 2.1\nName: siege-moody\nVersion: 1.0\nRequires-Dist: endpick\n"
_ENTRY_POINTS = "[endpick.plugins.v1]\nsiege.moody = siege_moody:Moody\n"


def install(folder: Path) -> None:
    """Write module and metadata; the folder then belongs on `PYTHONPATH`."""
    information = folder / "siege_moody-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "siege_moody.py").write_text(_SOURCE)
    (information / "METADATA").write_text(_METADATA)
    (information / "entry_points.txt").write_text(_ENTRY_POINTS)
