"""The turns of publishers: each work has its steps, none has all, and one that fails fails alone."""

from __future__ import annotations

import asyncio

import pytest

from endpick_builtin.producers.precise import kv_turns
from endpick_builtin.producers.precise.kv_turns import Turns

pytestmark = pytest.mark.asyncio


async def test_works_are_taken_in_turn_and_everything_else_has_its_own_between_them(monkeypatch):
    monkeypatch.setattr(kv_turns, "TURN_SECONDS", 0.0)  # no step after the first that finds the time over
    ticks = iter(range(10**6))
    monkeypatch.setattr(kv_turns.time, "monotonic", lambda: next(ticks) * 1e-9)
    turns, taken = Turns(), []

    def work(name, steps):
        for step in range(steps):
            taken.append((name, step))
            yield

    async def other():
        while ("b", 2) not in taken:
            taken.append("other")
            await asyncio.sleep(0)

    monkeypatch.setattr(kv_turns, "TURN_SECONDS", 1.5e-9)  # one step
    elsewhere = asyncio.create_task(other())
    turns.join(work("a", 3))
    await turns.finish(work("b", 3))
    await elsewhere

    steps = [one for one in taken if one != "other"]
    assert steps == [(name, step) for step in range(3) for name in ("a", "b")]
    assert taken.count("other") >= 5


async def test_a_work_that_fails_ends_alone_and_is_told(caplog):
    turns, told = Turns(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def fails():
        yield
        raise LookupError("gone")

    def goes_on():
        for _ in range(3):
            yield

    turns.join(fails())
    await turns.finish(goes_on())
    assert [str(problem) for problem in told] == ["gone"]


async def test_what_waits_for_a_work_goes_on_when_the_turns_end():
    turns = Turns()

    def never():
        while True:
            yield

    waiting = asyncio.create_task(turns.finish(never()))
    await asyncio.sleep(0)
    turns.close()
    await waiting
