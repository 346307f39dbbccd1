"""The collection loop follows the pool: endpoints that leave, move, or change their labels."""

from __future__ import annotations

import asyncio
import math

import pytest

from unit.data.collecting import SEEN, Polling, Rig, endpoint, now


def test_late_answer_of_a_removed_endpoint_is_dropped(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        async def answer(self, endpoint):
            await asyncio.sleep(0.05)
            return 1

    source = make_instance(Slow, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint("a"), endpoint("b")])
            await asyncio.sleep(0.02)
            table.remove("a")
            gone_at = now()
            await asyncio.sleep(1.0)
            assert all(at <= gone_at for at in source.plugin.times_of("a"))
            assert len(source.plugin.times_of("b")) > 5
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.01)
            assert math.isnan(table.view()[SEEN][table.generation.row_of["a"]])

    run_virtual(scenario())


def test_new_address_is_polled_instead_of_the_old_one(run_virtual, recorder, make_instance, keep):
    class Hosts(Polling):
        async def poll(self, endpoint):
            self.polls.append((endpoint.host, now()))
            return 1

    source = make_instance(Hosts, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a", "10.0.0.1"))
            await asyncio.sleep(0.5)
            table.upsert(endpoint("a", "10.0.0.2"))
            moved_at = now()
            await asyncio.sleep(0.5)
            assert max(source.plugin.times_of("10.0.0.1")) <= moved_at
            assert source.plugin.times_of("10.0.0.2")[0] == moved_at

    run_virtual(scenario())


def test_an_endpoint_whose_metrics_moved_is_polled_there_at_once(run_virtual, recorder, make_instance, keep):
    class Places(Polling):
        async def poll(self, endpoint):
            self.polls.append((endpoint.metrics_address, now()))
            return 1

    source = make_instance(Places, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.51)
            table.upsert(endpoint("a", metrics_address="10.0.0.1:9400"))
            moved_at = now()
            assert table.view()[SEEN].tolist() == [1.0], "it is the same server"
            await asyncio.sleep(0.5)
            assert source.plugin.times_of("10.0.0.1:9400")[0] == moved_at
            assert max(source.plugin.times_of("10.0.0.1:8000")) <= moved_at

    run_virtual(scenario())


def test_new_labels_reach_the_next_poll(run_virtual, recorder, make_instance, keep):
    class Labels(Polling):
        async def answer(self, endpoint):
            self.last_zone = endpoint.labels.get("zone")
            return 1

    source = make_instance(Labels, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a", labels={"zone": "x"}))
            await asyncio.sleep(0.51)
            assert source.plugin.last_zone == "x"
            table.upsert(endpoint("a", labels={"zone": "y"}))
            await asyncio.sleep(0.5)
            assert source.plugin.last_zone == "y"
        gaps = [later - earlier for (_, earlier), (_, later) in zip(source.plugin.polls[1:], source.plugin.polls[2:], strict=False)]
        assert gaps == pytest.approx([0.1] * len(gaps))

    run_virtual(scenario())
