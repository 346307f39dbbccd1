"""Notices within some hundredths of a second that an API server which took no connections takes them again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from random import Random
from urllib.parse import urlsplit

PROBE_SECONDS = 0.04
"""Between two attempts to connect, at most; half of it at least, so that pickers do not come in step."""
NAMED_PROBE_SECONDS = 0.2
"""The same where each attempt looks up a name first."""
PROBE_TIMEOUT_SECONDS = 0.5
"""How long one attempt may take: a machine that is gone answers nothing at all."""


class Comeback:
    """One server, waited for by any number of followers; whether it is back is tried out once for all of them.

    An attempt is a TCP connection that is closed at once: cheap for both sides, and only made while a follower waits. The first attempt
    that succeeds ends the trying; a port that took connections all the time says nothing, so that its server's errors are waited out.
    """

    def __init__(self, url: str, random: Random) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._seconds = PROBE_SECONDS if _is_address(self._host) else NAMED_PROBE_SECONDS
        self._random = random
        self._trying: asyncio.Task[None] | None = None
        self._waiting = 0

    async def wait(self, seconds: float) -> None:
        """Return when the port, having refused, takes connections, or else after `seconds`."""
        if self._trying is None:
            self._trying = asyncio.get_running_loop().create_task(self._try())
        trying = self._trying
        self._waiting += 1
        try:
            await asyncio.wait((trying,), timeout=seconds)
        finally:
            self._waiting -= 1
            if trying.done() or not self._waiting:
                trying.cancel()
                self._trying = None if self._trying is trying else self._trying

    async def _try(self) -> None:
        if await self._takes_connections():
            await asyncio.Event().wait()  # until the last follower has waited long enough
        while not await self._takes_connections():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(self._seconds * self._random.uniform(0.5, 1.0))

    async def _takes_connections(self) -> bool:
        with suppress(OSError):
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                _, writer = await asyncio.open_connection(self._host, self._port)
            writer.transport.abort()
            return True
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
