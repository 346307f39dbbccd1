"""Reloads, the end of the process and time limits tell those that wait in turns of the event loop, however many they are."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from endpick.api import FairnessPolicy
from endpick.requests import turns as turns_of_waiting
from endpick.requests.model import Refused, Routed
from endpick.requests.turns import EXPIRED_AT_ONCE
from unit.flow_control.queue_bench import SETTINGS, settings
from unit.requests.busy import Busy, Delivered
from unit.scheduling.workbench import plugin_of

pytestmark = pytest.mark.asyncio


async def test_a_reload_keeps_what_waits_and_one_without_queues_lets_it_go():
    stage = Busy()
    later = Delivered(stage.wait())
    stage.director.switch(stage.with_queues(settings(ttl_seconds=9.0)))
    assert stage.room.controller.waiting == 1
    stage.director.switch(stage.with_queues(None))
    assert isinstance(await later.result(), Routed)
    assert stage.route()
    stage.director.switch(stage.with_queues(SETTINGS))
    stage.wait()


async def test_at_the_end_all_that_wait_are_told():
    stage = Busy()
    laters = [Delivered(stage.wait()) for _ in range(3)]
    assert await stage.room.shut_down() == 3
    assert {(await later.result()).reason for later in laters} == {"rejected-shutting-down"}
    assert stage.refuse().reason == "rejected-shutting-down"


async def test_many_whose_time_is_over_at_once_are_told_a_few_in_each_turn_of_the_event_loop():
    stage = Busy()
    told = [Delivered(stage.wait()) for _ in range(3 * EXPIRED_AT_ONCE)]
    stage.now += 61.0
    counts = [0]
    async with asyncio.timeout(10):
        while counts[-1] < len(told):
            await asyncio.sleep(0)
            counts.append(sum(bool(each.results) for each in told))
    assert max(after - before for before, after in pairwise(counts)) == EXPIRED_AT_ONCE


async def test_one_is_told_on_time_although_the_turns_before_it_told_as_many_as_one_may():
    stage = Busy()
    told = [Delivered(stage.wait()) for _ in range(EXPIRED_AT_ONCE)]
    stage.now += 30.0
    late = Delivered(stage.wait())
    stage.now += 31.0
    for each in told:
        assert (await each.result()).reason == "rejected-ttl-expired"
    assert not late.results
    stage.now += 30.0
    assert (await late.result()).reason == "rejected-ttl-expired"


async def test_a_reload_without_queues_and_the_end_tell_thousands_in_many_turns(monkeypatch):
    """Each that goes is a decision, and each that is told a reply: ten thousand took seconds at once."""
    monkeypatch.setattr(turns_of_waiting, "TURN_SECONDS", 0.0)
    for end in (False, True):
        stage = Busy()
        laters = [Delivered(stage.wait()) for _ in range(200)]
        turns = 0

        async def turning(waiting=laters):
            nonlocal turns
            while not all(later.results for later in waiting):
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(turning())
        await asyncio.sleep(0)
        if end:
            assert await stage.room.shut_down() == 200
        else:
            stage.director.switch(stage.with_queues(None))
            assert not any(later.results for later in laters)
        await other
        assert turns > 3
        assert {type(each) for later in laters for each in later.results} == {Refused if end else Routed}
        assert stage.room.controller.waiting == 0


async def test_a_reload_that_leaves_less_room_tells_thousands_in_many_turns_and_those_that_came_last():
    stage = Busy()
    laters = [Delivered(stage.wait()) for _ in range(5 * EXPIRED_AT_ONCE)]
    stage.director.switch(stage.with_queues(settings(max_requests=EXPIRED_AT_ONCE)))
    assert not any(later.results for later in laters)
    await laters[-1].result()
    assert stage.room.controller.waiting >= 3 * EXPIRED_AT_ONCE
    refused = await laters[EXPIRED_AT_ONCE].result()
    assert (refused.status, refused.reason) == (429, "rejected-saturated")
    assert stage.room.controller.waiting == EXPIRED_AT_ONCE
    assert not any(later.results for later in laters[:EXPIRED_AT_ONCE])


async def test_queues_that_come_back_before_all_have_gone_keep_the_rest_waiting():
    stage = Busy()
    laters = [Delivered(stage.wait()) for _ in range(3)]
    stage.director.switch(stage.with_queues(None))
    stage.director.switch(stage.with_queues(SETTINGS))
    for _ in range(20):
        await asyncio.sleep(0)
    assert stage.room.controller.waiting == 3
    assert not any(later.results for later in laters)


async def test_a_policy_that_hears_of_the_end_finds_no_task_that_it_could_cancel():
    tasks = []

    class Stage(Busy):
        def policies(self):
            hears = {"flow_changed": lambda band, flow: tasks.append(asyncio.current_task())}
            return {**super().policies(), "in-turn": plugin_of(FairnessPolicy, "in-turn", choose=lambda band: None, **hears)}

    stage = Stage()
    Delivered(stage.wait())
    tasks.clear()
    assert await stage.room.shut_down() == 1
    assert set(tasks) == {None}
