"""One timer cuts off whatever takes longer than the limit, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from endpick.data.time_limit import TimeLimit

pytestmark = pytest.mark.asyncio


async def limited(limit: TimeLimit, work) -> str:
    task = asyncio.current_task()
    limit.begin(task, asyncio.get_running_loop())
    try:
        await work
    except asyncio.CancelledError:
        if limit.end(task):
            assert task.cancelling() == 0
            return "late"
        raise
    return "late, and did not mind" if limit.end(task) else "in time"


async def test_each_is_cut_off_when_its_own_time_is_over():
    limit, loop = TimeLimit(1.0), asyncio.get_running_loop()
    ends: dict[int, float] = {}

    async def one(number: int) -> str:
        await asyncio.sleep(number / 4)
        began = loop.time()
        said = await limited(limit, asyncio.sleep(0.1 if number % 2 else 9))
        ends[number] = loop.time() - began
        return said

    assert await asyncio.gather(*map(one, range(6))) == ["late", "in time"] * 3
    assert [ends[number] for number in range(6)] == pytest.approx([1.0, 0.1] * 3, abs=0.05)


async def test_what_ends_although_it_was_cut_off_is_told_so_and_may_go_on():
    async def stubborn() -> None:
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)

    assert await limited(TimeLimit(1.0), stubborn()) == "late, and did not mind"
    assert asyncio.current_task().cancelling() == 0


async def test_a_task_that_its_owner_cancels_is_not_late():
    task = asyncio.ensure_future(limited(TimeLimit(1.0), asyncio.sleep(9)))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_after_stop_nothing_is_cut_off():
    limit = TimeLimit(1.0)
    task = asyncio.ensure_future(limited(limit, asyncio.sleep(3)))
    await asyncio.sleep(0.5)
    limit.stop()
    assert await task == "in time"
    limit.stop()
