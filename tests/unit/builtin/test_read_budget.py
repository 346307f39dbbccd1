"""Of answers that come together some are received and read in each turn of the event loop, and the rest in the next ones."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from endpick_builtin.collection import read_budget
from endpick_builtin.collection.read_budget import ReadBudget
from unit.builtin.kv_publisher import until
from unit.builtin.pages import at, metrics_source, started
from unit.builtin.test_http_pages import answer

pytestmark = pytest.mark.asyncio
SERVERS = 24


async def turns_of(tasks: list[asyncio.Task[object]]) -> Counter[int]:
    """How many of them ended in each turn of the event loop."""
    turn, ended = 0, Counter[int]()
    for task in tasks:
        task.add_done_callback(lambda _: ended.update((turn,)))
    while ended.total() < len(tasks):
        turn += 1
        await asyncio.sleep(0)
    return ended


async def test_what_is_beyond_the_budget_has_its_turn_later_and_in_order(monkeypatch):
    monkeypatch.setattr(read_budget, "BYTES_PER_TURN", 100)
    budget, acted = ReadBudget(), list[int]()
    for number in range(5):
        budget.join(60, lambda number=number: acted.append(number))
    assert acted == [0, 1]
    assert budget.is_spent
    await asyncio.sleep(0)
    assert acted == [0, 1, 2, 3]
    budget.join(1, lambda: acted.append(5))
    assert acted == [0, 1, 2, 3], "behind those that wait"
    await asyncio.sleep(0)
    assert acted == [0, 1, 2, 3, 4, 5]


async def test_the_budget_is_whole_again_after_a_turn_in_which_nothing_waited(monkeypatch):
    monkeypatch.setattr(read_budget, "BYTES_PER_TURN", 100)
    budget = ReadBudget()
    budget.spend(500)
    assert budget.is_spent
    await asyncio.sleep(0)
    assert not budget.is_spent


@pytest.mark.parametrize("held_back", [8000, 1], ids=["all of them", "the last byte of each"])
async def test_of_pages_that_come_at_one_moment_some_are_handed_on_in_each_turn(monkeypatch, held_back):
    monkeypatch.setattr(read_budget, "BYTES_PER_TURN", 40_000)
    whole = answer(b"# a comment\n" * 1000)
    writers: list[asyncio.StreamWriter] = []

    async def speak(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole[:-held_back])
        await writer.drain()
        writers.append(writer)

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server, started(metrics_source()) as source:
        port = server.sockets[0].getsockname()[1]
        polls = [asyncio.create_task(source.poll(at(port))) for _ in range(SERVERS)]
        await until(lambda: len(writers) == SERVERS)
        for writer in writers:
            writer.write(whole[-held_back:])
        ended = await turns_of(polls)
        assert {poll.result().body for poll in polls} == {b"# a comment\n" * 1000}
        for writer in writers:
            writer.close()
    assert max(ended.values()) <= 4
    assert ended.total() == SERVERS
