"""What plugins say that they have learnt, which may be anything."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Scorer
from endpick.host.breaker import Breaker, BreakerSettings, BreakerState
from endpick.requests.memory import MemoryAccount, OverloadStage
from endpick.serve.overload import OverloadWatch
from unit.scheduling.workbench import Recording, plugin_of


class Faceless:
    @property
    def __class__(self):
        raise SystemExit(1)


def ends():
    raise SystemExit(1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "learnt", [ends, Faceless, lambda: -1, lambda: "much", lambda: float("nan"), lambda: True, lambda: sys.maxsize + 1, lambda: 10**400]
)
async def test_what_is_no_number_of_bytes_is_a_fault_and_memory_is_watched_on(learnt):
    telemetry, account = Recording(), MemoryAccount(1 << 40)
    plugin = plugin_of(Scorer, "odd", score=lambda *_: None, learnt_bytes=learnt)
    honest = plugin_of(Scorer, "honest", score=lambda *_: None, learnt_bytes=lambda: 1000)
    watch = OverloadWatch(account, lambda: (plugin, honest), telemetry, CollectorRegistry())
    watch.start()
    watch.stop()
    assert [name for name, *_ in telemetry.faults] == ["odd"]
    assert (account.learnt_bytes, account.stage) == (1000, OverloadStage.NORMAL)


@pytest.mark.asyncio
async def test_a_plugin_with_much_to_forget_is_called_again_until_it_has_and_no_other_is():
    left, called = [3], []

    def forget_much():
        called.append("much")
        left[0] -= 1
        return left[0] > 0

    much = plugin_of(Scorer, "much", score=lambda *_: None, forget_some=forget_much)
    little = plugin_of(Scorer, "little", score=lambda *_: None, forget_some=lambda: called.append("little"))
    watch = OverloadWatch(MemoryAccount(1), lambda: (much, little), Recording(), CollectorRegistry())
    for _ in range(5):
        watch.start()
        watch.stop()
    assert called == ["much", "little", "much", "much"]


@pytest.mark.asyncio
async def test_a_plugin_that_blocks_when_it_is_asked_what_it_has_learnt_is_left_out(monkeypatch):
    class Clock:
        seconds = 0.0

    def block():
        Clock.seconds += 0.5
        return 1000

    monkeypatch.setattr("endpick.serve.overload.time.perf_counter", lambda: Clock.seconds)
    telemetry, account = Recording(), MemoryAccount(1 << 40)
    breaker = Breaker(BreakerSettings(budget_seconds=0.05), lambda: Clock.seconds)
    slow = replace(plugin_of(Scorer, "slow", score=lambda *_: None, learnt_bytes=block), breaker=breaker)
    watch = OverloadWatch(account, lambda: (slow,), telemetry, CollectorRegistry())
    for _ in range(6):
        watch._next_question = 0.0
        watch.start()
        watch.stop()
    assert Clock.seconds == 3 * 0.5, "it is not asked a fourth time"
    assert breaker.state is BreakerState.OPEN


@pytest.mark.asyncio
@pytest.mark.parametrize("asked", ["learnt_bytes", "forget_some"])
async def test_a_plugin_that_is_asked_about_memory_finds_no_task_that_it_could_cancel(asked):
    tasks = []
    nosy = plugin_of(Scorer, "nosy", score=lambda *_: None, **{asked: lambda: tasks.append(asyncio.current_task())})
    watch = OverloadWatch(MemoryAccount(1), lambda: (nosy,), Recording(), CollectorRegistry())
    watch.start()
    watch.stop()
    assert tasks == [None]
