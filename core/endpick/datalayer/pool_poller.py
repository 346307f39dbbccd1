"""Polls of what belongs to the whole pool: at an interval, sooner after a failure, with delays that grow until one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from endpick.api.datalayer import PollingPoolSource
from endpick.api.plugin import Parameters
from endpick.datalayer.tasks import LONGEST_DELAY_SECONDS
from endpick.plugins.failures import AWAIT_FAILURES, is_the_hosts

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

    def __init__(
        self,
        source: PollingPoolSource[Parameters, object],
        deliver: Callable[[object], None],
        failed: Callable[[BaseException | str], None],
    ) -> None:
        """Deliver payloads to `deliver`, and tell `failed` why there was none."""
        self._source = source
        self._deliver = deliver
        self._failed = failed
        self._interval_seconds = source.interval_seconds

    async def run(self) -> None:
        """Poll until cancelled: at once, then when it is time again."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            failures = 0 if await self._poll() else failures + 1
            await asyncio.sleep(max(0.0, began + wait_after(failures, self._interval_seconds) - loop.time()))

    async def _poll(self) -> bool:
        try:
            async with asyncio.timeout(self._source.timeout_seconds) as limit:
                payload = await self._source.poll_pool()
        except AWAIT_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            self._failed(f"no answer within {self._source.timeout_seconds:g} s" if limit.expired() else problem)
            return False
        self._deliver(payload)
        return True
