"""Who watches the board of health is told of each change, and however many watch, a few in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from endpick.transport.health import LIVENESS, MOST_WOKEN, HealthBoard, HealthStatus


@pytest.mark.asyncio
async def test_of_thousands_of_watchers_some_are_called_in_each_turn_and_each_of_them_once():
    board, called = HealthBoard(), Counter()
    for number in range(10 * MOST_WOKEN + 1):
        board.watch(lambda number=number: called.update((number,)))

    board.set_ready(True)
    turns = []
    while len(called) < 10 * MOST_WOKEN + 1:
        turns.append(called.total())
        await asyncio.sleep(0)

    assert turns == [MOST_WOKEN * turn for turn in range(1, 11)]
    await asyncio.sleep(0)
    assert set(called.values()) == {1}


@pytest.mark.asyncio
async def test_a_change_while_watchers_are_being_called_is_heard_by_all_of_them():
    board, heard = HealthBoard(), {}

    def hear(number: int) -> None:
        heard[number] = board(""), board(LIVENESS)

    ends = [board.watch(lambda number=number: hear(number)) for number in range(5 * MOST_WOKEN)]
    board.set_ready(True)
    await asyncio.sleep(0)
    board.set(LIVENESS, HealthStatus.NOT_SERVING)
    for end in ends[:10]:
        end()
    for _ in range(7):
        await asyncio.sleep(0)

    last = HealthStatus.SERVING, HealthStatus.NOT_SERVING
    assert all(heard[number] == last for number in range(10, 5 * MOST_WOKEN))


def test_few_watchers_are_called_at_once():
    board, called = HealthBoard(), []
    board.watch(lambda: called.append(board("")))
    board.set_ready(True)
    assert called == [HealthStatus.SERVING]
