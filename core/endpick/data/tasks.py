"""Restarts tasks with back-off, and cancels them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from endpick.host.awaiting import is_being_cancelled
from endpick.host.failures import PLUGIN_ERRORS

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0


class Backoff:
    """Delays that double from 0.5 s to 30 s; a run longer than 30 s resets them."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay_after(self, ran_seconds: float) -> float:
        """Return the seconds to wait after a run of this duration."""
        if ran_seconds > LONGEST_DELAY_SECONDS:
            self._next = FIRST_DELAY_SECONDS
        delay = self._next
        self._next = min(delay * 2, LONGEST_DELAY_SECONDS)
        return delay


async def keep_running(run: Callable[[], Awaitable[None]], failed: Callable[[BaseException | str], None]) -> None:
    """Run until cancelled, and restart with back-off; `failed` receives each error."""
    loop = asyncio.get_running_loop()
    backoff = Backoff()
    while not is_being_cancelled():
        started = loop.time()
        try:
            await run()
            failed("ended by itself")
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            failed("cancelled itself")
        except PLUGIN_ERRORS as error:
            failed(error)
        await asyncio.sleep(backoff.delay_after(loop.time() - started))


async def cancel_all(tasks: Iterable[asyncio.Task[None]], grace_seconds: float) -> int:
    """Cancel the tasks and wait for them; returns the number that did not end in time."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    if not cancelled:
        return 0
    _, pending = await asyncio.wait(cancelled, timeout=grace_seconds)
    return len(pending)
