"""Whatever a plugin does while it is awaited, the host goes on in time."""

from __future__ import annotations

import asyncio

import pytest

from endpick.host.attempt import LateError, attempt
from unit.oddities import THROWN, Own

pytestmark = pytest.mark.asyncio
FAILURES = (*THROWN, KeyboardInterrupt(), TimeoutError("its own"))


async def test_what_is_answered_is_the_answer():
    async def answer():
        await asyncio.sleep(0)
        return 5

    assert await attempt(answer, 1.0) == 5


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("thrown", FAILURES, ids=lambda thrown: type(thrown).__name__)
async def test_what_is_thrown_reaches_the_caller_and_ends_no_task(thrown, waits):
    async def throw():
        if waits:
            await asyncio.sleep(0)
        raise thrown

    with pytest.raises(type(thrown)) as raised:
        await attempt(throw, 1.0)
    assert raised.value is thrown
    assert asyncio.current_task().cancelling() == 0


async def test_what_is_thrown_by_the_call_itself_reaches_the_caller_as_well():
    def throw():
        raise Own("x")

    with pytest.raises(Own):
        await attempt(throw, 1.0)


async def test_one_that_takes_too_long_is_cancelled():
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(LateError) as late:
        await attempt(hang, 0.01)
    assert late.value.task is None
    assert ended.is_set()


async def test_one_that_swallows_its_cancellation_is_left_behind():
    release = asyncio.Event()

    async def swallow():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(LateError) as late:
        await attempt(swallow, 0.01)
    assert late.value.task is not None
    assert not late.value.task.done()
    release.set()
    await asyncio.wait((late.value.task,))


async def test_a_caller_that_is_cancelled_cancels_the_plugin_and_waits_for_no_other():
    begun, release, seen = asyncio.Event(), asyncio.Event(), []

    async def swallow():
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                seen.append("cancelled")

    waiting = asyncio.ensure_future(attempt(swallow, 60.0))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert seen == ["cancelled"]
    release.set()
    (left,) = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await asyncio.wait((left,))
