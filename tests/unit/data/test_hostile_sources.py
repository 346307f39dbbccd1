"""Whatever a source or a discovery throws or swallows, wherever it is awaited, it is asked again and others are served."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from endpick.api import Endpoint, EndpointDiscovery, PollingPoolSource
from endpick.data.discovery import STOP_SECONDS, DiscoveryTask
from endpick.data.table import EndpointTable
from endpick.host.breaker import Breaker, BreakerSettings
from unit.data.collecting import PRICE, SEEN, Keep, Polling, Rig, endpoint, now
from unit.data.misbehaving import Prices, brought_in_five_seconds, sources_that
from unit.oddities import THROWN, OddText


@pytest.mark.parametrize("thrown", THROWN, ids=lambda thrown: type(thrown).__name__)
@pytest.mark.parametrize("shape", ["poll", "watch", "poll_pool", "watch_pool"])
def test_a_source_that_throws_anything_is_asked_again(run_virtual, recorder, make_instance, shape, thrown):
    async def misbehave():
        await asyncio.sleep(0)
        raise thrown

    kind = sources_that(misbehave)[shape]
    assert brought_in_five_seconds(run_virtual, recorder, make_instance, kind, of_pool="pool" in shape) == 7.0
    assert {name for name, *_ in recorder.polls} == {"source"}
    assert len(recorder.polls) == 2


@pytest.mark.parametrize("thrown", THROWN, ids=lambda thrown: type(thrown).__name__)
def test_a_discovery_that_throws_anything_is_started_again(run_virtual, recorder, make_instance, thrown):
    class Throwing(EndpointDiscovery):
        runs = 0

        async def run(self, registry):
            self.runs += 1
            registry.replace_all([Endpoint(f"run-{self.runs}", "10.0.0.1", 80)])
            registry.ready()
            if self.runs < 3:
                raise thrown
            await asyncio.Event().wait()

    table = EndpointTable(now)

    async def scenario():
        task = DiscoveryTask(make_instance(Throwing, "found"), table, recorder)
        task.start()
        await asyncio.sleep(5.0)
        await task.stop()

    run_virtual(scenario())
    assert [each.name for each in table.generation.endpoints] == ["run-3"]
    assert [name for name, *_ in recorder.faults] == ["found"] * 2


class Stubborn:
    """Goes on until it is released, however often it is cancelled."""

    released: asyncio.Event

    async def go_on(self):
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue


def test_a_discovery_that_does_not_end_holds_nothing_up_and_is_heard_no_more(run_virtual, recorder, make_instance):
    class Endless(Stubborn, EndpointDiscovery):
        async def run(self, registry):
            registry.ready()
            await self.go_on()
            registry.replace_all([Endpoint("late", "10.0.0.1", 80)])

    table = EndpointTable(now)

    async def scenario():
        Endless.released = asyncio.Event()
        task = DiscoveryTask(make_instance(Endless, "endless"), table, recorder)
        task.start()
        await task.wait_ready(1.0)
        began = now()
        await task.stop()
        assert now() - began == pytest.approx(STOP_SECONDS)
        Endless.released.set()
        await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert table.generation.endpoints == ()
    assert [problem for *_, problem in recorder.faults] == ["did not end within 10 s of its cancellation, and is heard no more"]


def test_a_poll_that_goes_on_although_it_was_cancelled_is_told_and_the_endpoint_polled_when_it_has_ended(
    run_virtual, recorder, make_instance, keep
):
    class Endless(Stubborn, Polling):
        async def answer(self, endpoint):
            if endpoint.name == "bad" and len(self.polls) < 4:
                await self.go_on()
            return 7.0

    source = make_instance(Endless, "source")

    async def scenario():
        Endless.released = asyncio.Event()
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("bad"))
            table.upsert(endpoint("good", "10.0.0.2"))
            await asyncio.sleep(5.0)
            assert math.isnan(table.view()[SEEN][0])
            assert table.view()[SEEN][1] == 7.0
            Endless.released.set()
            await asyncio.sleep(5.0)
            assert table.view()[SEEN][0] == 7.0

    run_virtual(scenario())
    assert [name for _, name, problem in recorder.polls if problem.startswith("the poll goes on although it was cancelled")] == ["bad"]


def test_a_pool_source_that_does_not_end_is_not_asked_twice_at_once(run_virtual, recorder, make_instance):
    class Endless(Stubborn, PollingPoolSource):
        interval_seconds = 1.0
        timeout_seconds = 0.5
        under_way = most = calls = 0

        async def poll_pool(self):
            self.calls += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.calls == 1:
                await self.go_on()
            self.under_way -= 1
            return float(self.calls)

    source = make_instance(Endless, "source")

    async def scenario():
        Endless.released = asyncio.Event()
        async with Rig(recorder, [source], [make_instance(Prices, "prices", (PRICE,))]) as table:
            await asyncio.sleep(20.0)
            assert source.plugin.calls == 1
            Endless.released.set()
            await asyncio.sleep(5.0)
            return table.view().pool(PRICE)

    assert run_virtual(scenario()) > 1.0
    assert source.plugin.most == 1
    assert [problem for *_, problem in recorder.polls] == [
        "no answer within 0.5 s",
        "does not end although it was cancelled, and is asked again when it has",
    ]


def test_an_endpoint_that_a_plugin_has_spoilt_is_polled_again_once_it_can_be_read(run_virtual, recorder, make_instance, keep):
    class Reading(Polling):
        async def poll(self, endpoint):
            hash(endpoint.name)
            return await super().poll(endpoint)

    source = make_instance(Reading, "source")
    bad = endpoint("bad")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(bad)
            table.upsert(endpoint("good", "10.0.0.2"))
            await asyncio.sleep(0.5)
            for name in ("name", "address"):
                object.__setattr__(bad, name, OddText("bad"))
            await asyncio.sleep(3.0)
            during = len(source.plugin.times_of("good"))
            object.__setattr__(bad, "name", "bad")
            object.__setattr__(bad, "address", "10.0.0.1:8000")
            before = len(source.plugin.times_of("bad"))
            await asyncio.sleep(3.0)
            return during, len(source.plugin.times_of("bad")) - before

    good, again = run_virtual(scenario())
    assert good > 30, "others are polled as ever"
    assert again > 10
    assert {(who, name) for who, name, _ in recorder.polls} == {("source", "bad")}


def test_a_turn_that_fails_is_told_and_the_next_one_comes(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        rig = Rig(recorder, [source], [keep])
        async with rig as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.5)
            poller = rig.loop._watched["a"].poller
            poller._sent = None
            await asyncio.sleep(0.5)
            poller._sent = set()
            polls = len(source.plugin.polls)
            await asyncio.sleep(3.0)
            return len(source.plugin.polls) - polls

    assert run_virtual(scenario()) > 10
    assert recorder.polls == [("source", "a", "the endpoint cannot be read: TypeError: argument of type 'NoneType' is not iterable")]


@pytest.fixture
def slow_clock(monkeypatch):
    """Seconds for which sources hold the event loop, by the loop's own time; `slow_clock(0.3)` is such a stretch."""
    monkeypatch.setattr("endpick.host.stretches.perf_counter", now)

    def hold(seconds):
        asyncio.get_running_loop().now += seconds

    return hold


def on_time_of_the_loop(instance):
    """The same instance, whose circuit goes by the time of the loop."""
    return replace(instance, breaker=Breaker(BreakerSettings(), now))


def test_an_endpoint_whose_polls_hold_the_event_loop_is_left_out_and_others_are_polled(
    run_virtual, recorder, make_instance, keep, slow_clock
):
    class Holding(Polling):
        async def answer(self, endpoint):
            if endpoint.name == "bad":
                slow_clock(0.3)
            return 7.0

    async def scenario():
        source = on_time_of_the_loop(make_instance(Holding, "source"))
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("bad"))
            table.upsert(endpoint("good", "10.0.0.2"))
            await asyncio.sleep(4.0)
            return len(source.plugin.times_of("bad")), len(source.plugin.times_of("good"))

    bad, good = run_virtual(scenario())
    assert bad == 3
    assert good > 20
    ((who, name, problem),) = recorder.polls
    assert (who, name) == ("source", "bad")
    assert problem.startswith("left out for 5 s, because 3 calls held the event loop for 0.9 s of")


@pytest.mark.parametrize("of_pool", [False, True])
def test_a_source_whose_polls_hold_the_event_loop_is_left_out(run_virtual, recorder, make_instance, slow_clock, of_pool):
    class Holding(PollingPoolSource if of_pool else Polling):
        interval_seconds = 0.1
        calls = 0

        async def poll_pool(self):
            return await self.answer(None)

        async def answer(self, endpoint):
            self.calls += 1
            slow_clock(0.3)
            return 7.0

    collector = make_instance(Prices, "prices", (PRICE,)) if of_pool else make_instance(Keep, "keep", (SEEN,))

    async def scenario():
        source = on_time_of_the_loop(make_instance(Holding, "source"))
        async with Rig(recorder, [source], [collector]) as table:
            table.replace_all(endpoint(f"e{number}", f"10.0.0.{number}") for number in range(40))
            await asyncio.sleep(5.0)
            return source.plugin.calls

    assert run_virtual(scenario()) == 3
