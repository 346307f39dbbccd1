"""Whose body is next, and how many may wait."""

from __future__ import annotations

import asyncio

import pytest

from endpick.requests.large import LargeBody
from endpick.serve.bodies.queue import MOST_WAITING, FairQueue, Waiting
from endpick_builtin.parsers.openai import OpenAIParser
from unit.scheduling.workbench import instance

pytestmark = pytest.mark.asyncio
PARSER = instance(OpenAIParser)


def waiting(fairness_id: str, size: int = 10) -> Waiting:
    return Waiting(LargeBody(PARSER, "/", {}, bytes(size), None, fairness_id), asyncio.get_running_loop().create_future())


def drained(queue: FairQueue) -> str:
    order = ""
    while (each := queue.pop()) is not None:
        order += each.large.fairness_id
    return order


async def test_who_sends_many_bodies_does_not_keep_others_waiting():
    queue = FairQueue(1000)
    for fairness_id in "aaaabbc":
        assert queue.push(waiting(fairness_id))
    assert (queue.bodies, queue.bytes) == (7, 70)
    assert drained(queue) == "abcabaa"
    assert (queue.bodies, queue.bytes) == (0, 0)


async def test_bodies_of_one_client_keep_their_order():
    queue = FairQueue(1000)
    bodies = [waiting("a") for _ in range(3)]
    for each in bodies:
        queue.push(each)
    assert [queue.pop() for _ in bodies] == bodies


async def test_bytes_and_number_are_bounded_but_one_body_always_finds_room():
    queue = FairQueue(100)
    assert queue.push(waiting("a", 500))
    assert not queue.push(waiting("b", 1))
    assert drained(queue) == "a"
    assert [queue.push(waiting("a", 60)), queue.push(waiting("b", 41)), queue.push(waiting("b", 40))] == [True, False, True]

    crowd = FairQueue(10**9)
    assert [crowd.push(waiting(str(number))) for number in range(MOST_WAITING + 1)] == [True] * MOST_WAITING + [False]


async def test_a_body_that_is_removed_leaves_its_room_and_its_turn():
    queue = FairQueue(1000)
    first, second, third = (waiting(fairness_id) for fairness_id in "aab")
    for each in (first, second, third):
        queue.push(each)
    queue.remove(third)
    queue.remove(first)
    queue.remove(first)
    assert (queue.bodies, queue.bytes) == (1, 10)
    assert queue.pop() is second
    queue.remove(second)
    assert queue.pop() is None
