"""A plugin of the data layer that cancels the task in which it runs is asked again, and costs others nothing."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import DataCollector, EndpointDiscovery, EndpointEventSource
from endpick.data.discovery import DiscoveryTask
from endpick.data.table import EndpointTable
from endpick.data.tasks import CANCELLED
from unit.data.collecting import SEEN, Keep, Polling, Rig, endpoint, now
from unit.data.misbehaving import brought_in_five_seconds, sources_that


def cancel_own_task():
    """What a library for time limits does that fails halfway: the task is cancelled, and nothing takes that back."""
    asyncio.current_task().cancel()


async def cancel_and_wait():
    cancel_own_task()
    await asyncio.sleep(0)


class PollAtOnce(Polling):
    async def answer(self, endpoint):
        if len(self.polls) < 3:
            cancel_own_task()
        return 7.0


KINDS = {**sources_that(cancel_and_wait), "poll at once": PollAtOnce}


@pytest.mark.parametrize("shape", ["poll", "poll at once", "watch", "watch_pool"])
def test_a_source_that_cancels_the_task_in_which_it_runs_is_asked_again(run_virtual, recorder, make_instance, shape):
    assert brought_in_five_seconds(run_virtual, recorder, make_instance, KINDS[shape], of_pool="pool" in shape) == 7.0
    assert [problem for *_, problem in recorder.polls] == [CANCELLED] * 2


def test_a_source_that_always_cancels_its_task_is_asked_less_and_less_often_and_not_after_the_end(run_virtual, recorder, make_instance):
    class Poll(Polling):
        async def answer(self, endpoint):
            cancel_own_task()
            await asyncio.Event().wait()

    source = make_instance(Poll, "source")

    async def scenario():
        async with Rig(recorder, [source], [make_instance(Keep, "keep", (SEEN,))]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(60.0)
            asked = len(source.plugin.polls)
        await asyncio.sleep(60.0)
        return asked

    asked = run_virtual(scenario())
    assert 5 <= asked <= 8
    assert len(source.plugin.polls) == asked


def test_a_collector_finds_no_task_that_it_could_cancel(run_virtual, recorder, make_instance):
    class Collects(DataCollector):
        def collect(self, payload, writer):
            cancel_own_task()

    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [make_instance(Collects, "collects", (SEEN,))]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) > 5
    assert recorder.polls == [], "the source did nothing wrong"
    assert {name for _, name, *_ in recorder.collects} == {"collects"}


def test_a_source_that_hears_of_changes_cancels_neither_the_discovery_nor_who_starts_it(run_virtual, recorder, make_instance):
    class Hears(EndpointEventSource):
        def notify(self, event):
            cancel_own_task()

    class Finds(EndpointDiscovery):
        async def run(self, registry):
            for number in range(3):
                registry.upsert(endpoint(f"e{number}"))
                await asyncio.sleep(1.0)
            await asyncio.Event().wait()

    async def scenario():
        async with Rig(recorder, [make_instance(Hears, "hears")], [make_instance(Keep, "keep", (SEEN,))]) as table:
            task = DiscoveryTask(make_instance(Finds, "found"), table, recorder)
            task.start()
            await asyncio.sleep(5.0)
            await task.stop()
            return len(table.generation.endpoints)

    assert run_virtual(scenario()) == 3
    assert recorder.faults == []
    assert {name for name, *_ in recorder.polls} == {"hears"}


def test_a_discovery_that_cancels_the_task_in_which_it_runs_is_started_again(run_virtual, recorder, make_instance):
    class Cancels(EndpointDiscovery):
        runs = 0

        async def run(self, registry):
            self.runs += 1
            if self.runs < 3:
                cancel_own_task()
                await asyncio.sleep(0)
            registry.replace_all([endpoint(f"run-{self.runs}")])
            registry.ready()
            await asyncio.Event().wait()

    table = EndpointTable(now)

    async def scenario():
        task = DiscoveryTask(make_instance(Cancels, "found"), table, recorder)
        task.start()
        await task.wait_ready(5.0)
        await asyncio.sleep(1.0)
        await task.stop()

    run_virtual(scenario())
    assert [each.name for each in table.generation.endpoints] == ["run-3"]
    assert [problem for *_, problem in recorder.faults] == [CANCELLED] * 2
