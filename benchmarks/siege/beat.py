"""A plugin that measures the event loop in which it is installed: turns, and what each took; a distribution of its own in a folder."""

from __future__ import annotations

from pathlib import Path

_SOURCE = '''\
"""Measures the turns of the event loop."""

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


class Beat(Scorer):
    """Measure the processor time that the event loop's thread takes between two beats: no turn of the loop takes more."""

    async def start(self):
        self.longest = Gauge("siege_longest_turn_seconds", "Processor time.", registry=self.context.registry)
        self.over = Gauge("siege_long_turns", "Of more than 10 ms.", registry=self.context.registry)
        self.turns = Gauge("siege_turns", "All.", registry=self.context.registry)
        self.most = 0.0
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
        self.turns.inc()
        self.over.inc(now - before > 0.01)
        self.most = max(now - before, self.most)
        self.longest.set(self.most)
        self.beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self.beat, now)

    async def stop(self):
        self.beating.cancel()
        gc.callbacks.remove(self.collected)
        os.close(self.waits)
        TOLD.flush()

    def score(self, request, endpoints, state):
        return np.zeros(len(endpoints))
'''


def install(folder: Path) -> None:
    """As `siege.beat`; see `install_plugin`."""
    install_plugin(folder, "siege.beat", "Beat", _SOURCE)


def install_plugin(folder: Path, name: str, attribute: str, source: str) -> None:
    """Write a module with one plugin, and the metadata of its distribution; the folder then belongs on `PYTHONPATH`.

    Args:
        folder: where modules are.
        name: of the plugin type; module and distribution have it as well, spelled as those are.
        attribute: the class in the module.
        source: the module.
    """
    module, distribution = name.replace(".", "_"), name.replace(".", "-")
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: endpick\n")
    (information / "entry_points.txt").write_text(f"[endpick.plugins.v1]\n{name} = {module}:{attribute}\n")
