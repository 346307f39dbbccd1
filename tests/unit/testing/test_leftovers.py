"""What is found of what was left running."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from endpick.testing.exercise import run
from endpick.testing.plugin_under_test import TimeLimitExceeded, time_limit
from endpick.testing.side_effects import Running, tasks_left


def test_threads_and_sockets_that_came_are_described():
    before, end = Running.now(), threading.Event()
    thread = threading.Thread(target=end.wait, name="the-thread")
    thread.start()
    with socket.socket():
        added = before.added(Running.now())
    end.set()
    thread.join()

    assert added == ("the thread 'the-thread'", "1 open socket(s)")
    assert before.added(Running.now()) == ()


def test_tasks_that_end_by_themselves_are_not_left():
    async def brief() -> None:
        await asyncio.sleep(0.01)

    async def begin() -> None:
        asyncio.get_running_loop().tasks = [asyncio.ensure_future(brief())]

    assert asyncio.run(tasks_left(begin)) == ()


def test_tasks_that_go_on_are_named_by_their_coroutine():
    async def forever() -> None:
        await asyncio.sleep(60)

    async def begin() -> None:
        asyncio.get_running_loop().tasks = [asyncio.ensure_future(forever())]

    (left,) = run(tasks_left(begin))
    assert left.startswith("the task of `")
    assert left.endswith("forever`")


def test_a_loop_ends_although_a_task_ignores_its_cancellation():
    cancelled = []

    async def stubborn() -> None:
        while len(cancelled) < 1000:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(1)

    async def begin() -> str:
        asyncio.get_running_loop().tasks = [asyncio.ensure_future(stubborn())]
        await asyncio.sleep(0)
        return "done"

    assert run(begin()) == "done"
    assert cancelled == [1]


def test_a_limit_interrupts_a_loop_that_catches_everything():
    def endless() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    with pytest.raises(TimeLimitExceeded), time_limit(0.05):
        endless()


def test_a_limit_that_was_kept_leaves_no_alarm():
    with time_limit(0.05):
        pass

    assert threading.Event().wait(0.1) is False


def test_a_limit_outside_the_main_thread_limits_nothing():
    seen = []

    def work() -> None:
        with time_limit(0.01):
            seen.append(threading.Event().wait(0.05))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [False]
