"""Polls of what belongs to the whole pool: at an interval, sooner after a failure, with delays that grow until one succeeds."""

from __future__ import annotations

import asyncio
from functools import partial

from endpick.api.datalayer import PollingPoolSource
from endpick.api.plugin import Parameters
from endpick.data.dispatch import PayloadDispatcher
from endpick.data.pace import SHORTEST_TICK_SECONDS
from endpick.data.tasks import LONGEST_DELAY_SECONDS
from endpick.host.attempt import LateError, attempt
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.stretches import Timed

FIRST_RETRY_SECONDS = 1.0


def wait_after(failures: int, interval_seconds: float) -> float:
    """Seconds from the start of a poll to the next, after so many failures in a row.

    A poll that failed is repeated after a second, or the interval where that is shorter, then after twice as long each time: up to the
    interval, or to 30 s where that is longer, so that a source asked every second does not hammer a server that is down.
    """
    if not failures:
        return interval_seconds
    first = min(interval_seconds, FIRST_RETRY_SECONDS)
    longest = max(interval_seconds, LONGEST_DELAY_SECONDS)
    return float(min(first * 2 ** min(failures - 1, 64), longest))


class PoolPoller:
    """Polls one source."""

    def __init__(self, source: PollingPoolSource[Parameters, object], dispatcher: PayloadDispatcher) -> None:
        """Deliver payloads to `dispatcher`, or tell it why there was none."""
        self._source = source
        self._dispatcher = dispatcher
        self._interval_seconds = max(source.interval_seconds, SHORTEST_TICK_SECONDS)
        self._timeout_seconds = source.timeout_seconds

    async def run(self) -> None:
        """Poll until cancelled: at once, then when it is time again."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            failures = 0 if await self._poll() else failures + 1
            await asyncio.sleep(max(0.0, began + wait_after(failures, self._interval_seconds) - loop.time()))

    async def _poll(self) -> bool:
        if not self._dispatcher.is_asked(""):
            return False
        try:
            payload = await attempt(self._begun, self._timeout_seconds)
        except LateError as late:
            self.failed(f"no answer within {self._timeout_seconds:g} s")
            await self._until_ended(late.task)
            return False
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            self.failed(problem)
            return False
        self._dispatcher.publish_pool(payload)
        return True

    def _begun(self) -> Timed[object]:
        dispatcher = self._dispatcher
        return Timed(self._source.poll_pool(), dispatcher.source.breaker.budget_seconds, partial(dispatcher.held, ""))

    def failed(self, problem: BaseException | str) -> None:
        """Count that the source had nothing to deliver."""
        self._dispatcher.failed("", problem)

    async def _until_ended(self, task: asyncio.Task[None] | None) -> None:
        """A source is never asked twice at once, so one that does not heed its cancellation is asked again when it has ended."""
        if task is None:
            return
        self.failed("does not end although it was cancelled, and is asked again when it has")
        await asyncio.wait((task,))
