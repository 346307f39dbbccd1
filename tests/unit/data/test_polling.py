"""When endpoints and pool-wide sources are polled."""

from __future__ import annotations

import asyncio
import math

import pytest

from endpick.api import DataCollector, PollingPoolSource, Unavailable
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.polling import PollCounts, PollSchedule, SourceBinding, next_poll_at, pool_delay
from endpick.data.table import EndpointTable
from unit.data.collecting import KEYS, PRICE, SEEN, Polling, Rig, endpoint, now


def test_a_repeating_payload_is_polled_less_often():
    schedule, payload = PollSchedule(0.1, 1.0), object()
    delays = []
    for _ in range(11):
        schedule.answered(payload)
        delays.append(round(schedule.delay_seconds, 3))
    assert delays == [0.1] * 5 + [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    schedule.answered(object())
    assert not schedule.is_relaxed


def test_a_failing_endpoint_is_polled_less_often_up_to_a_second():
    schedule = PollSchedule(0.1, 0.1)
    delays = []
    for _ in range(12):
        schedule.failed()
        delays.append(round(schedule.delay_seconds, 3))
    assert delays == [0.1] * 5 + [0.2, 0.4, 0.8] + [1.0] * 4


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5])
def test_the_next_poll_lies_at_the_phase_of_the_next_interval(phase):
    at = next_poll_at(1000.03, 0.1, phase)
    assert 1000.03 < at <= 1000.13 + 1e-9
    assert math.isclose(at / 0.1 % 1, phase, abs_tol=1e-6) or math.isclose(at / 0.1 % 1, 1 + phase, abs_tol=1e-6)


def test_pool_sources_are_retried_with_growing_delays():
    assert [pool_delay(failures, 10.0) for failures in range(8)] == [10.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [pool_delay(failures, 0.5) for failures in (0, 1, 2)] == [0.5, 0.5, 1.0]


class Idle(Polling):
    repeats_payload = True

    async def answer(self, endpoint):
        return 7


@pytest.fixture
def idle_rig(recorder, make_instance, keep):
    source, counts = make_instance(Idle, "idle"), PollCounts()
    table = EndpointTable(now, KEYS)
    binding = SourceBinding(source, (keep,), frozenset({SEEN.name}))
    loop = CollectionLoop(table, Collection((binding,)), CollectionSettings(0.1, 1.0), recorder, counts)
    return table, loop, source.plugin, counts


def test_idle_endpoint_is_polled_at_full_rate_after_a_request(run_virtual, idle_rig):
    table, loop, plugin, _ = idle_rig

    async def scenario():
        loop.start()
        table.upsert(endpoint("a"))
        await asyncio.sleep(5.0)
        idle = len(plugin.polls)
        table.sent.add("10.0.0.1:8000")
        await asyncio.sleep(1.0)
        busy = len(plugin.polls) - idle
        await loop.stop()
        return idle, busy

    idle, busy = run_virtual(scenario())
    assert idle < 15
    assert busy >= 8
    assert not table.sent, "forgotten when nothing changed for five polls"


def test_endpoint_reporting_in_responses_is_polled_less(run_virtual, idle_rig):
    table, loop, plugin, counts = idle_rig

    async def scenario():
        loop.start()
        table.upsert(endpoint("a"))
        for _ in range(60):
            await asyncio.sleep(0.05)
            table.sent.add("10.0.0.1:8000")
            table.writer(None, table.find("a")).set(SEEN, 1.0)
        await loop.stop()

    run_virtual(scenario())
    assert counts.reported > 15
    assert len(plugin.polls) < 8


def test_a_poll_does_not_overwrite_a_newer_value(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        async def answer(self, endpoint):
            await asyncio.sleep(0.05)
            return 1

    async def scenario():
        async with Rig(recorder, [make_instance(Slow, "slow")], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.02)
            table.writer(None, table.find("a")).set(SEEN, 2.0)
            await asyncio.sleep(0.04)
            assert table.view()[SEEN].tolist() == [2.0]

    run_virtual(scenario())


def test_a_pool_source_that_fails_is_counted_and_polled_again(run_virtual, recorder, make_instance):
    class Market(PollingPoolSource):
        interval_seconds = 10.0
        polls = 0

        async def poll_pool(self):
            self.polls += 1
            if self.polls == 1:
                raise Unavailable("closed")
            return 0.25

    class Prices(DataCollector):
        def collect(self, payload, writer):
            writer.set_pool(PRICE, payload)

    source, prices = make_instance(Market, "market"), make_instance(Prices, "prices", (PRICE,))

    async def scenario():
        async with Rig(recorder, [source], [prices]) as table:
            await asyncio.sleep(12.0)
            assert table.view().pool(PRICE) == 0.25

    run_virtual(scenario())
    assert recorder.polls == [("market", "", "closed")]
    assert source.plugin.polls == 3
