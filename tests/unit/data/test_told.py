"""What endpoints tell by themselves: it counts before a poll that was under way, and spares them polls."""

from __future__ import annotations

import asyncio
import math

import pytest

from endpick.api import DataKey, Scope, Subscriptions
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.dispatch import SourceBinding
from endpick.data.pace import Pace, PollCounts
from endpick.data.table import EndpointTable
from endpick.host.instance import scope_of
from unit.data.collecting import KEYS, Keep, Polling, endpoint, now

KEY = KEYS[0]
INTERVAL = 0.1
IDLE = 1.0


class Changing(Polling):
    """A page that is another each time, and takes a while."""

    repeats_payload = True
    takes = 0.0

    async def answer(self, endpoint):
        await asyncio.sleep(self.takes)
        return float(len(self.polls))


class Running:
    """A loop over one endpoint whose page is polled, and whose answers are told."""

    def __init__(self, recorder, make_instance, needed=frozenset({KEY.name}), source=Changing):
        self.source = make_instance(source, "source")
        self.table = EndpointTable(now, KEYS)
        self.counts = PollCounts()
        binding = SourceBinding(self.source, (make_instance(Keep, "keep", (KEY,)),), needed)
        self.loop = CollectionLoop(self.table, Collection((binding,), math.inf), CollectionSettings(INTERVAL, IDLE), recorder, self.counts)
        self.answers = self.table.writer(scope_of("answers", Subscriptions(produces=(KEY.beside_others(),))))

    async def __aenter__(self):
        self.table.upsert(endpoint("a"))
        self.loop.start()
        return self

    async def __aexit__(self, *failure):
        await self.loop.stop()

    def tell(self, value):
        self.answers.set(KEY.beside_others(), value, self.table.find("a") or self.table.generation.endpoints[0])

    async def answering(self, seconds: float, every: float, key_told=True):
        """Requests are sent and answered all the time."""
        for _ in range(round(seconds / every)):
            self.table.sent.add(self.table.generation.endpoints[0].address)
            if key_told:
                self.tell(-1.0)
            await asyncio.sleep(every)


def polled(run_virtual, *arguments, told=True, **options) -> tuple[int, int]:
    """Polls made and left out during ten seconds of traffic."""

    async def run():
        async with Running(*arguments, **options) as running:
            await running.answering(10.0, 0.03, key_told=told)
            return running.counts.made, running.counts.told

    return run_virtual(run())


def test_an_endpoint_whose_answers_tell_is_polled_at_the_idle_interval_only(run_virtual, recorder, make_instance):
    made, told = polled(run_virtual, recorder, make_instance)

    assert 9 <= made <= 12
    assert made + told in (100, 101)


def test_an_endpoint_whose_answers_do_not_tell_is_polled_as_usual(run_virtual, recorder, make_instance):
    assert polled(run_virtual, recorder, make_instance, told=False)[1] == 0


@pytest.mark.parametrize("needed", [frozenset({KEY.name, "another"}), frozenset()])
def test_polls_go_on_where_a_plugin_must_have_what_answers_do_not_tell(run_virtual, recorder, make_instance, needed):
    assert polled(run_virtual, recorder, make_instance, needed=needed)[1] == 0


class Punctual(Changing):
    interval_seconds = INTERVAL


def test_a_source_with_its_own_interval_is_polled_as_it_says(run_virtual, recorder, make_instance):
    assert polled(run_virtual, recorder, make_instance, source=Punctual)[1] == 0


def test_polls_are_as_frequent_as_before_once_answers_stop(run_virtual, recorder, make_instance):
    async def run():
        async with Running(recorder, make_instance) as running:
            await running.answering(5.0, 0.03)
            told = running.counts.told
            made = running.counts.made
            await asyncio.sleep(1.0)
            return running.counts.told - told, running.counts.made - made

    told, made = run_virtual(run())
    assert told <= 1
    assert made >= 8


def test_an_answer_counts_before_the_poll_that_was_under_way_and_the_next_poll_before_the_answer(run_virtual, recorder, make_instance):
    class Slow(Punctual):
        takes = 0.05

    async def run():
        async with Running(recorder, make_instance, source=Slow) as running:
            while not running.source.plugin.polls:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.001)
            running.tell(77.0)
            await asyncio.sleep(0.06)  # the poll is over, and the next one, if it has begun, is not
            after_the_first = running.table.view()[KEY][0]
            await asyncio.sleep(0.3)
            return after_the_first, running.table.view()[KEY][0]

    after_the_first, later = run_virtual(run())
    assert after_the_first == 77.0
    assert later >= 2.0
    assert later != 77.0


def test_an_endpoint_that_leaves_or_moves_is_forgotten():
    table = EndpointTable(lambda: 5.0, KEYS)
    table.upsert(endpoint("a"))
    (member,) = table.generation.endpoints
    table.writer(None).set(KEY.beside_others(), 1.0, member)
    assert table.told.are_fresh(member.name, (KEY.name,), 1.0)
    assert not table.told.are_fresh("unknown", (KEY.name,), 1.0)

    table.remove(member.name)
    assert not table.told.any


def test_a_poll_in_its_turn_is_left_out_only_so_often():
    counts = PollCounts()
    pace = Pace(3, counts)

    assert [pace.is_due(told=True) for _ in range(7)] == [False, False, True, False, False, True, False]
    assert counts.snapshot() == {"made": 2, "skipped": 0, "told": 5}
    assert not Pace(1, counts).may_stretch
    assert Pace(1, counts).is_due(told=True)


def test_only_what_belongs_to_endpoints_can_have_two_producers():
    with pytest.raises(ValueError, match="'price' has scope 'pool'"):
        DataKey("price", float, Scope.POOL).beside_others()
