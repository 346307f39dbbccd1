"""The collection loop in virtual time: who is polled when."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from unit.data.collecting import SEEN, Polling, Rig, endpoint, now


def test_an_endpoint_is_polled_at_once_and_then_every_interval(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            began = now()
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)
            times = source.plugin.times_of("a")
            assert times[0] == began
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert 0.05 <= gaps[0] <= 0.15
            assert gaps[1:] == pytest.approx([0.1] * (len(gaps) - 1))
            assert table.view()[SEEN].tolist() == [float(len(times))]

    run_virtual(scenario())
    assert recorder.polls == []


def test_endpoints_are_polled_in_groups_of_eight(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint(f"e{number}") for number in range(16)])
            await asyncio.sleep(0.35)

    run_virtual(scenario())
    moments = Counter(round(source.plugin.times_of(f"e{number}")[2], 4) for number in range(16))
    assert sorted(moments.values()) == [8, 8]


def test_a_large_pool_is_polled_less_often(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint(f"e{number}") for number in range(900)])
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert 2000 < len(source.plugin.polls) < 5000


def test_each_source_keeps_its_own_interval(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        interval_seconds = 0.4

    fast, slow = make_instance(Polling, "fast"), make_instance(Slow, "slow")

    async def scenario():
        async with Rig(recorder, [fast, slow], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(4.0)

    run_virtual(scenario())
    assert len(fast.plugin.polls) == pytest.approx(40, abs=1)
    assert len(slow.plugin.polls) == pytest.approx(10, abs=1)


def test_a_slow_poll_is_never_overtaken_by_a_second_one(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        at_once = 0
        most_at_once = 0

        async def answer(self, endpoint):
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0.25)
            self.at_once -= 1
            return 1

    slow = make_instance(Slow, "slow")

    async def scenario():
        async with Rig(recorder, [slow], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(3.0)

    run_virtual(scenario())
    assert slow.plugin.most_at_once == 1
    assert len(slow.plugin.polls) == pytest.approx(10, abs=1)


def test_no_payload_is_no_news(run_virtual, recorder, make_instance, keep):
    class NullTelemetry(Polling):
        async def answer(self, endpoint):
            return None

    source = make_instance(NullTelemetry, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) > 5
    assert (recorder.polls, recorder.collects) == ([], [])


def test_a_source_without_collectors_is_not_asked(run_virtual, recorder, make_instance):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], []) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert source.plugin.polls == []


@pytest.mark.parametrize("refresh", [0.0, -1.0])
def test_without_a_refresh_interval_polls_are_50_ms_apart(run_virtual, recorder, make_instance, keep, refresh):
    source = make_instance(Polling, "source")
    slow = make_instance(type("Slow", (Polling,), {"interval_seconds": 1.0}), "slow")

    async def scenario():
        async with Rig(recorder, [source, slow], [keep], refresh) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.9)

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(38, abs=1)
    assert len(slow.plugin.polls) == 2
