"""What takes too long is ended once a second, but not before what came while the process stood still has been read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from endpick.transport import sweeps
from endpick.transport.sweeps import Sweeps


@pytest.mark.asyncio
async def test_the_sweep_after_the_process_stood_still_is_left_out(monkeypatch):
    monkeypatch.setattr(sweeps, "_SECONDS", 0.0)
    # When a sweep is due and when it comes, by turns: in time, in time, a minute late, in time.
    times = iter((0.0, 1.0, 1.0, 2.0, 2.0, 62.0, 62.0, 63.0, 63.0))
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=lambda: next(times)))
    swept: list[float] = []
    done = asyncio.Event()

    def step(now: float) -> None:
        swept.append(now)
        if now == 63.0:
            sweeping.stop()
            done.set()

    sweeping = Sweeps(step)
    sweeping.start()
    await asyncio.wait_for(done.wait(), 10)
    await asyncio.sleep(0)
    assert swept == [1.0, 2.0, 63.0]
