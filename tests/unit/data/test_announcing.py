"""What instances are told once is told once, in order, in turns, and later where one of them is left out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from endpick.api import EndpointEventSource
from endpick.data import announcing
from endpick.data.announcing import Announcements
from endpick.host.boundary import report_late as late
from endpick.host.breaker import Breaker, BreakerSettings
from endpick.host.kinds import ExtensionPoint
from unit.data.collecting import SEEN, Keep, Rig, endpoint, now


@pytest.fixture
def busy(monkeypatch):
    """What calls take: a clock that they move."""

    class Busy:
        seconds = 0.0

        def work(self, seconds):
            self.seconds += seconds

    clock = Busy()
    monkeypatch.setattr(announcing, "perf_counter", lambda: clock.seconds)
    return clock


def with_circuit(instance):
    return replace(instance, breaker=Breaker(BreakerSettings(budget_seconds=0.05), now))


@pytest.fixture
def stage(make_instance, recorder):
    """Announcements to two instances, and what they have heard."""

    class Stage:
        def __init__(self):
            self.one, self.two = (with_circuit(make_instance(Keep, name, (SEEN,))) for name in ("one", "two"))
            self.announcements = Announcements(recorder)
            self.heard = []

        def tell(self, instance, number, act=lambda: None):
            def call():
                self.heard.append((instance.name, number))
                act()

            self.announcements.tell(instance, call)

    return Stage()


def test_what_is_told_quickly_is_told_at_once(run_virtual, stage):
    async def scenario():
        for number in range(1000):
            stage.tell(stage.one, number)
        return list(stage.heard)

    assert run_virtual(scenario()) == [("one", number) for number in range(1000)]


def test_what_takes_long_together_is_told_between_the_turns_of_others_and_in_order(run_virtual, stage, busy):
    async def scenario():
        heard = []
        for number in range(10):
            stage.tell(stage.one, number, lambda: busy.work(0.012))
        while len(stage.heard) < 10:
            heard.append(len(stage.heard))
            await asyncio.sleep(0)
        return heard

    assert run_virtual(scenario()) == [2, 4, 6, 8]
    assert stage.heard == [("one", number) for number in range(10)]


def test_one_that_blocks_is_told_the_rest_when_it_is_called_again_and_others_do_not_wait_for_it(run_virtual, stage, recorder):
    def block():
        late(stage.one, ExtensionPoint.COLLECTION, 1.0, recorder)

    async def scenario():
        for number in range(5):
            stage.tell(stage.one, number, block if number < 3 else lambda: None)
            stage.tell(stage.two, number)
        before = list(stage.heard)
        await asyncio.sleep(4.0)
        assert stage.heard == before
        await asyncio.sleep(3.0)
        return before

    before = run_virtual(scenario())
    assert [number for name, number in before if name == "two"] == [0, 1, 2, 3, 4]
    assert [number for name, number in before if name == "one"] == [0, 1, 2]
    assert stage.heard[len(before) :] == [("one", 3), ("one", 4)]


def test_who_is_gone_is_told_nothing(run_virtual, stage, recorder):
    async def scenario():
        for instance in (stage.one, stage.two):
            for _ in range(3):
                late(instance, ExtensionPoint.COLLECTION, 1.0, recorder)
            stage.tell(instance, 1)
        stage.announcements.keep({id(stage.two.breaker): stage.two})
        await asyncio.sleep(10.0)
        assert stage.heard == [("two", 1)]
        stage.announcements.tell(stage.one, lambda: late(stage.one, ExtensionPoint.COLLECTION, 1.0, recorder))
        stage.tell(stage.one, 2)
        stage.announcements.stop()
        await asyncio.sleep(100.0)

    run_virtual(scenario())
    assert stage.heard == [("two", 1)]


def test_a_source_that_blocks_at_each_change_of_the_pool_holds_it_up_a_few_times_only(run_virtual, recorder, make_instance, monkeypatch):
    clock = [0.0]
    for module in ("announcing", "dispatch"):
        monkeypatch.setattr(f"endpick.data.{module}.perf_counter", lambda: clock[0])
    told = []

    class Hears(EndpointEventSource):
        blocks = True

        def notify(self, event):
            told.append(event.endpoint.name)
            clock[0] += 1.0 if self.blocks else 0.0

    hears = with_circuit(make_instance(Hears, "hears"))

    async def scenario():
        async with Rig(recorder, [hears], [make_instance(Keep, "keep", (SEEN,))]) as table:
            table.replace_all([endpoint(f"e{number}", f"10.0.0.{number}") for number in range(10)])
            await asyncio.sleep(4.0)
            assert len(told) == 3
            hears.plugin.blocks = False
            await asyncio.sleep(3.0)

    run_virtual(scenario())
    assert told == [f"e{number}" for number in range(10)], "each is told in the end, and once"
