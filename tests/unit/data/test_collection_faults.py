"""What a misbehaving source or collector can do to others: nothing."""

from __future__ import annotations

import asyncio
import math

import pytest

from endpick.api import DataCollector, Unavailable
from unit.data.collecting import SEEN, Keep, Polling, Rig, endpoint


def test_hanging_source_times_out_without_delaying_others(run_virtual, recorder, make_instance, keep):
    class Hanging(Polling):
        timeout_seconds = 0.37

        async def answer(self, endpoint):
            await asyncio.Event().wait()

    hanging, healthy = make_instance(Hanging, "hanging"), make_instance(Polling, "healthy")

    async def scenario():
        async with Rig(recorder, [hanging, healthy], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.99)

    run_virtual(scenario())
    assert len(healthy.plugin.polls) == pytest.approx(20, abs=1)
    assert len(hanging.plugin.polls) == 5, "a busy source misses its turn; a second poll never queues up"
    assert set(recorder.polls) == {("hanging", "a", "took longer than 0.37 s")}
    assert len(recorder.polls) == 5


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (Unavailable("not today"), "not today"),
        (RuntimeError("broken"), "broken"),
        (TimeoutError("of its own"), "of its own"),
        (SystemExit("rude"), "rude"),
    ],
)
def test_whatever_a_source_raises_is_counted_and_polling_goes_on(run_virtual, recorder, make_instance, keep, raised, shown):
    class Raising(Polling):
        async def answer(self, endpoint):
            raise raised

    source = make_instance(Raising, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)
            assert math.isnan(table.view()[SEEN][0])

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(7, abs=1), "ten turns, of which those after the sixth failure are fewer"
    assert recorder.polls == [("source", "a", shown)] * len(source.plugin.polls)


def test_a_source_that_cancels_itself_is_polled_again(run_virtual, recorder, make_instance, keep):
    class Cancelling(Polling):
        async def answer(self, endpoint):
            raise asyncio.CancelledError

    source = make_instance(Cancelling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(7, abs=1), "ten turns, of which those after the sixth failure are fewer"


def test_values_age_while_polls_fail(run_virtual, recorder, make_instance, keep):
    class Once(Polling):
        async def answer(self, endpoint):
            if len(self.polls) > 1:
                raise Unavailable("only once")
            return 5

    source = make_instance(Once, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(3.0)
            assert table.view()[SEEN].tolist() == [5.0]
            assert table.view().age(SEEN).tolist() == pytest.approx([3.0])

    run_virtual(scenario())


@pytest.mark.parametrize("raised", [Unavailable("nothing of use"), RuntimeError("bug"), SystemExit("rude")])
def test_a_collector_that_raises_takes_nothing_from_the_next_one(run_virtual, recorder, make_instance, keep, raised):
    class Raising(DataCollector):
        def collect(self, payload, writer):
            raise raised

    source, broken = make_instance(Polling, "source"), make_instance(Raising, "broken")

    async def scenario():
        async with Rig(recorder, [source], [broken, keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.04)
            assert table.view()[SEEN].tolist() == [1.0]

    run_virtual(scenario())
    assert recorder.collects == [("source", "broken", "a", str(raised))]


def test_undeclared_write_of_a_collector_is_counted(run_virtual, recorder, make_instance):
    source, sneaky = make_instance(Polling, "source"), make_instance(Keep, "sneaky", ())

    async def scenario():
        async with Rig(recorder, [source], [sneaky]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.04)
            assert math.isnan(table.view()[SEEN][0])

    run_virtual(scenario())
    assert [problem for *_, problem in recorder.collects] == ["instance 'sneaky' writes 'test/seen' without declaring it in `produces`"]
