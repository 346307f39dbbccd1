"""Background tasks that end together, and tasks that are started again when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from endpick.datalayer.backoff import Backoff
from endpick.datalayer.delivery import PLUGIN_FAILURES


class TaskGroup:
    """Tasks somebody cancels and waits for; unlike `asyncio.TaskGroup`, one that fails or ends does not concern the others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task and keep it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Ask every task to end; returns those asked."""
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
    loop = asyncio.get_running_loop()
    backoff = Backoff()
    while True:
        began = loop.time()
        try:
            await run()
            failed("ended by itself")
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            failed("cancelled itself")
        except PLUGIN_FAILURES as problem:
            failed(problem)
        await asyncio.sleep(backoff.delay_after(loop.time() - began))


def was_cancelled() -> bool:
    """Whether somebody asked the running task to end; False when a `CancelledError` came out of a plugin instead."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
