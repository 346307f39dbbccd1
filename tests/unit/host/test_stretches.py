"""How long something that is awaited holds the event loop: told for each stretch, and nothing else about it changes."""

from __future__ import annotations

import asyncio

import pytest

from endpick.host import stretches
from endpick.host.stretches import Timed

pytestmark = pytest.mark.asyncio


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `clock(0.3)` moves it."""
    now = [0.0]
    monkeypatch.setattr(stretches, "perf_counter", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


async def test_each_stretch_that_is_too_long_is_told_and_waits_are_not(clock):
    held = []

    async def work():
        clock(0.3)
        await asyncio.sleep(0)
        clock(0.01)
        await asyncio.sleep(0)
        clock(0.2)
        return "done"

    assert await Timed(work(), 0.05, held.append) == "done"
    assert held == pytest.approx([0.3, 0.2])


async def test_a_stretch_that_ends_with_an_exception_is_told_as_well(clock):
    held = []

    async def work():
        await asyncio.sleep(0)
        clock(0.3)
        raise LookupError("x")

    with pytest.raises(LookupError):
        await Timed(work(), 0.05, held.append)
    assert held == pytest.approx([0.3])


async def test_a_cancellation_reaches_what_is_awaited():
    begun, ended = asyncio.Event(), []

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.ensure_future(asyncio.wait_for(Timed(work(), 1.0, ended.append), 60))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_one_that_swallows_its_cancellation_goes_on():
    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "after all"

    async def timed():
        return await Timed(work(), 1.0, lambda _: None)

    task = asyncio.ensure_future(timed())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "after all"


async def test_an_awaitable_that_takes_no_exceptions_ends_with_what_is_thrown():
    class Plain:
        def __await__(self):
            return iter(())

    class Waiting:
        def __await__(self):
            return iter([None, None])

    assert await Timed(Plain(), 1.0, lambda _: None) is None

    async def timed():
        await Timed(Waiting(), 1.0, lambda _: None)

    task = asyncio.ensure_future(timed())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
