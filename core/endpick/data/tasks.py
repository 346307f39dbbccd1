"""Tasks that run for as long as the process does: restarted with growing delays when they end, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from endpick.host.failures import CALL_FAILURES, is_a, is_closing, is_the_hosts

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
CANCELLED = "the task in which it ran was cancelled, and not by endpick"


class Backoff:
    """Doubles from half a second to thirty; starts over after a run that lasted longer than the longest delay."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay_after(self, ran_seconds: float) -> float:
        """Seconds to wait, given how long the last run lasted."""
        if ran_seconds > LONGEST_DELAY_SECONDS:
            self._next = FIRST_DELAY_SECONDS
        delay = self._next
        self._next = min(delay * 2, LONGEST_DELAY_SECONDS)
        return delay


class TaskGroup:
    """Tasks that their owner cancels and waits for; unlike `asyncio.TaskGroup`, one that fails or ends does not concern the others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task and keep it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep(self, work: Callable[[], Coroutine[object, object, None]], failed: Callable[[str], None]) -> None:
        """Start a task, and another one, after a growing delay, wherever it was cancelled by what runs in it and not by its owner.

        Plugins can reach the task in which they run. What they do to it costs them a turn, and others nothing.
        """
        self._keep(work, failed, Backoff())

    def _keep(self, work: Callable[[], Coroutine[object, object, None]], failed: Callable[[str], None], backoff: Backoff) -> None:
        if self._is_ending:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() and not self._is_ending:
                failed(CANCELLED)
                loop.call_later(backoff.delay_after(loop.time() - began), self._keep, work, failed, backoff)

        self.spawn(work()).add_done_callback(ended)

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Ask every task to end; returns those asked."""
        self._is_ending = True
        asked = tuple(self._tasks)
        for task in asked:
            task.cancel()
        return asked


async def stop_all(groups: Iterable[TaskGroup], grace_seconds: float) -> int:
    """Cancel everything and wait; returns how many tasks would not end within the grace period, which is one for all."""
    asked = [task for group in groups for task in group.cancel()]
    if not asked:
        return 0
    _, stubborn = await asyncio.wait(asked, timeout=grace_seconds)
    return len(stubborn)


async def keep_running(run: Callable[[], Awaitable[None]], failed: Callable[[BaseException | str], None]) -> None:
    """Run something for ever: start it again, with growing delays, when it returns or raises."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    backoff = Backoff()
    while True:
        began = loop.time()
        try:
            await run()
            failed("ended by itself")
        except CALL_FAILURES as problem:
            if is_closing(problem, own) or is_the_hosts(problem):
                raise
            failed("cancelled itself" if is_a(problem, asyncio.CancelledError) else problem)
        await asyncio.sleep(backoff.delay_after(loop.time() - began))


async def until_set(event: asyncio.Event) -> None:
    """For modules that the compiled build takes, and whose coroutines it would not."""
    await event.wait()
