"""Of many requests whose producers are to begin at one moment, some begin in each turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from endpick.requests.producing import CANDIDATES_AT_ONCE, Beginnings

pytestmark = pytest.mark.asyncio


async def begun_in_each_turn(count, candidates):
    """How many began in each turn of the event loop."""
    beginnings, begun, turns = Beginnings(), [], []

    async def one(number):
        await beginnings.turn(candidates)
        begun.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    while len(begun) < count:
        before = len(begun)
        await asyncio.sleep(0)
        turns.append(len(begun) - before)
    await asyncio.gather(*tasks)
    assert begun == list(range(count))
    assert (beginnings._begun, len(beginnings._waiting)) == (0, 0) or await settled(beginnings)
    return turns


async def settled(beginnings):
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return (beginnings._begun, len(beginnings._waiting)) == (0, 0)


async def test_of_many_requests_beside_a_large_pool_some_begin_in_each_turn():
    turns = await begun_in_each_turn(100, CANDIDATES_AT_ONCE // 4)
    assert max(turns) == 4
    assert turns.count(4) == 25


async def test_requests_beside_a_small_pool_begin_at_once():
    assert await begun_in_each_turn(100, 12) == [100]


async def test_a_pool_that_is_larger_than_all_that_may_be_begins_one_by_one():
    assert max(await begun_in_each_turn(5, 10 * CANDIDATES_AT_ONCE)) == 1


async def test_one_whose_client_has_left_keeps_none_from_beginning():
    beginnings = Beginnings()
    waiting = [asyncio.ensure_future(beginnings.turn(CANDIDATES_AT_ONCE)) for _ in range(6)]
    await asyncio.sleep(0)
    for each in waiting[1:5]:
        each.cancel()
    await asyncio.wait(waiting)
    assert [each.cancelled() for each in waiting] == [False, *[True] * 4, False]
    await beginnings.turn(1)
