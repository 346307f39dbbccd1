"""Pools that ask for more polls than the event loop has time for: all are asked, less often, and never all at once."""

from __future__ import annotations

import asyncio
from collections import Counter

from endpick.api import DataCollector, EndpointChange, EndpointEvent, EndpointEventSource
from endpick.data.pace import MOST_POLLS_PER_SECOND, PollCounts, PollLoad
from unit.data.collecting import Polling, Rig, endpoint, now


def test_many_that_join_at_once_are_asked_in_turn_and_each_of_them_again(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep], refresh=0.05) as table:
            table.replace_all(endpoint(f"e{number}") for number in range(1000))
            await asyncio.sleep(5)
        per_slice = Counter(int(at * 100) for _, at in source.plugin.polls)
        assert max(per_slice.values()) <= 4 * MOST_POLLS_PER_SECOND / 100
        assert 0.6 * MOST_POLLS_PER_SECOND * 5 < len(source.plugin.polls) <= 1.2 * MOST_POLLS_PER_SECOND * 5
        per_endpoint = Counter(name for name, _ in source.plugin.polls)
        assert len(per_endpoint) == 1000
        assert max(per_endpoint.values()) <= min(per_endpoint.values()) + 5

    run_virtual(scenario())


def test_who_leaves_before_its_turn_to_join_is_never_asked(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all(endpoint(f"e{number}") for number in range(1000))
            table.replace_all([endpoint("e999")])
            await asyncio.sleep(2)
            table.replace_all(endpoint(f"f{number}") for number in range(1000))
        asked = {name for name, _ in source.plugin.polls}
        assert "e999" in asked
        assert len(asked) <= 16 + 1 + 16

    run_virtual(scenario())


def test_a_pool_that_has_little_to_do_is_looked_at_as_often_as_a_small_one_again():
    counts = PollCounts()
    load = PollLoad(counts)
    load.joined(100, 20, 0.0)
    assert (load.stretch, load.is_large) == (1, False)
    load.joined(1000, 20, 0.0)
    assert (load.stretch, load.is_large) == (7, True)
    for second in range(1, 10):
        counts.made += 1000
        load.measure(second - 0.5, second - 0.5)
        load.measure(float(second), float(second))
    assert load.stretch == 1
    counts.made += 20_000
    load.measure(10.0, 10.0)
    assert load.stretch == 7


def test_looks_that_come_late_become_fewer_until_they_come_in_time():
    load = PollLoad(PollCounts())
    load.joined(1000, 20, 0.0)
    stretches = []
    for second, late in enumerate((0.2, 0.2, 0.0, 0.0, 0.0), start=1):
        load.measure(second - 0.5, second - 0.5 - late)
        load.measure(float(second), float(second))
        stretches.append(load.stretch)
    assert stretches == [14, 28, 14, 7, 3]


def test_no_more_than_some_are_looked_at_in_one_turn_of_a_loop_that_is_behind():
    load = PollLoad(PollCounts())
    assert sum(load.admits(7.0) for _ in range(4000)) == 32
    assert load.admits(7.011)


def test_of_many_that_leave_at_once_some_are_ended_in_each_turn_and_none_is_asked_for_long(run_virtual, recorder, make_instance, keep):
    source, gone = make_instance(Polling, "source"), make_instance(Gone, "gone")

    async def scenario():
        async with Rig(recorder, [source, make_instance(Changes, "changes")], [gone]) as table:
            table.replace_all(endpoint(f"e{number}") for number in range(1000))
            await asyncio.sleep(2)
            left_at = now()
            table.replace_all(endpoint(f"e{number}", "10.0.0.2" if number < 500 else "10.0.0.1") for number in range(600))
            await asyncio.sleep(2)
            return left_at

    left_at = run_virtual(scenario())
    moments = Counter(gone.plugin.removed_at)
    assert sum(moments.values()) == 900, "500 are other servers, and 400 are there no longer"
    assert max(moments.values()) <= 2 * 16
    assert max(source.plugin.times_of("e999")) < left_at + 0.5


class Changes(EndpointEventSource):
    """Delivers each event as it is."""

    def notify(self, event):
        return event


class Gone(DataCollector):
    """Remembers when endpoints left; of polls it wants nothing."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.removed_at: list[float] = []

    def collect(self, payload, writer):
        if isinstance(payload, EndpointEvent) and payload.change is EndpointChange.REMOVED:
            self.removed_at.append(now())
