"""The event loop in virtual time: events, timers and tasks run in the order of their times, and nobody waits."""

from __future__ import annotations

import asyncio

from endpick_lab.virtual_time import VirtualLoop


def run(prepare) -> list[tuple[float, str]]:
    loop = VirtualLoop()
    seen: list[tuple[float, str]] = []

    def see(name: str) -> None:
        seen.append((round(loop.time(), 6), name))

    async def whole() -> None:
        prepare(loop, see)
        await loop.run_events()

    loop.run_until_complete(whole())
    loop.close()
    return seen


def test_events_run_by_time_and_then_by_arrival():
    def prepare(loop, see):
        loop.at(2.0, lambda: see("late"))
        loop.at(1.0, lambda: see("first"))
        loop.at(1.0, lambda: see("second"))

    assert run(prepare) == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_timers_of_plugins_run_between_events():
    def prepare(loop, see):
        loop.at(1.0, lambda: see("event"))
        loop.at(3.0, lambda: see("event"))
        loop.call_later(2.0, see, "timer")
        loop.call_at(9.0, see, "never")  # after the last event

    assert run(prepare) == [(1.0, "event"), (2.0, "timer"), (3.0, "event")]


def test_a_task_that_an_event_starts_runs_before_time_goes_on():
    def prepare(loop, see):
        async def task() -> None:
            see("task")
            await asyncio.sleep(0.5)
            see("slept")

        tasks = []
        loop.at(1.0, lambda: tasks.append(loop.create_task(task())))
        loop.at(2.0, lambda: see("event"))

    assert run(prepare) == [(1.0, "task"), (1.5, "slept"), (2.0, "event")]


def test_events_may_add_events():
    def prepare(loop, see):
        def again() -> None:
            see("again")
            if loop.time() < 3000:
                loop.at(loop.time() + 1000, again)

        loop.at(1000.0, again)

    assert [at for at, _ in run(prepare)] == [1000.0, 2000.0, 3000.0]
