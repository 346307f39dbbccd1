"""The queue of a port: addresses take turns in it, and short reads have a limit as well."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from endpick.api.turns import Turns

pytestmark = pytest.mark.asyncio


async def emptied(queue: Turns) -> None:
    while queue.scheduled:  # noqa: ASYNC110 - it signals nothing
        await asyncio.sleep(0)


async def test_addresses_take_turns_and_connections_of_one_stand_in_order():
    queue, taken = Turns(0.0), []
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.join(partial(taken.append, name), name[0])
    await emptied(queue)
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_who_joins_again_waits_for_all_others():
    queue, taken = Turns(0.0), []

    def greedy() -> None:
        taken.append("greedy")
        if len(taken) < 6:
            queue.join(greedy, "greedy")

    queue.join(greedy, "greedy")
    for name in ("x", "y"):
        queue.join(partial(taken.append, name), name)
    await emptied(queue)
    assert taken == ["greedy", "x", "y", "greedy", "greedy", "greedy"]


async def test_within_its_time_the_queue_serves_each_once():
    queue, taken = Turns(3600.0), []
    for name in "abc":
        queue.join(partial(taken.append, name))
    queue.join(lambda: queue.join(partial(taken.append, "again")))
    await asyncio.sleep(0)
    assert taken == ["a", "b", "c"]
    await emptied(queue)
    assert taken == ["a", "b", "c", "again"]


async def test_short_reads_are_exhausted_when_their_time_is_over_and_not_after_the_next_look():
    queue = Turns(0.0)
    queue.at_once_seconds = 1.0
    queue.took(2.0)
    await asyncio.sleep(0)
    told = []
    for seconds in (0.4, 0.4, 0.4):
        queue.took(seconds)
        told.append(queue.exhausted)
    await asyncio.sleep(0)
    assert (told, queue.exhausted) == ([False, False, True], False)
