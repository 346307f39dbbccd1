"""A scorer that raises, answers nonsense or blocks now and then, installed as a distribution of its own in a folder."""

from __future__ import annotations

from pathlib import Path

_SOURCE = '''\
"""Unreliable on purpose."""

import asyncio
import gc
import os
import struct
import time

import numpy as np
from prometheus_client import Gauge

from endpick.api import Scorer

BEAT_SECONDS = 0.001
# As `timeline` reads them: what happened, when it began, and three numbers.
ENTRY = struct.Struct("=cdddd")
TOLD = open(os.environ["SIEGE_TIMELINE"], "ab", buffering=1 << 20)


class Moody(Scorer):
    """Every ninth call raises, every eleventh answers NaN, every 3000th blocks for 60 ms; for some time of each minute every call fails.

    No picker can take the loop back from a plugin that blocks, so it blocks for less than a hundredth of the time: else it alone would be
    the 99th percentile.
    """

    calls = 0

    async def start(self):
        """Measure the processor time that the event loop's thread takes between two beats: no turn of the loop takes more."""
        Moody.longest = Gauge("siege_longest_turn_seconds", "Processor time.", registry=self.context.registry)
        Moody.over = Gauge("siege_long_turns", "Of more than 10 ms.", registry=self.context.registry)
        Moody.turns = Gauge("siege_turns", "All.", registry=self.context.registry)
        self.waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        gc.callbacks.append(self.collected)
        self.collecting = (0.0, 0.0)
        self.beat(time.thread_time())

    def collected(self, phase, info):
        if phase == "start":
            self.collecting = time.time(), time.thread_time()
        else:
            began, cpu = self.collecting
            TOLD.write(ENTRY.pack(b"g", began, time.time() - began, info["generation"], time.thread_time() - cpu))

    def beat(self, before):
        now = time.thread_time()
        TOLD.write(ENTRY.pack(b"t", time.time(), now, float(os.pread(self.waits, 100, 0).split()[1]) / 1e9, 0.0))
        Moody.turns.inc()
        Moody.over.inc(now - before > 0.01)
        Moody.longest.set(max(now - before, Moody.longest._value.get()))
        self.beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self.beat, now)

    async def stop(self):
        self.beating.cancel()
        gc.callbacks.remove(self.collected)
        os.close(self.waits)
        TOLD.flush()

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
_METADATA = "Metadata-Version: 2.1\nName: siege-moody\nVersion: 1.0\nRequires-Dist: endpick\n"
_ENTRY_POINTS = "[endpick.plugins.v1]\nsiege.moody = siege_moody:Moody\n"


def install(folder: Path) -> None:
    """Write module and metadata; the folder then belongs on `PYTHONPATH`."""
    information = folder / "siege_moody-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "siege_moody.py").write_text(_SOURCE)
    (information / "METADATA").write_text(_METADATA)
    (information / "entry_points.txt").write_text(_ENTRY_POINTS)
