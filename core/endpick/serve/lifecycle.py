"""The life of a serving process: its phases, and how long it still takes requests once it has been told to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from endpick.transport.health import HealthBoard
from endpick.transport.server import Server

T = TypeVar("T")

_LOOK_SECONDS = 0.05
"""How often the drain time looks whether a gateway is still connected."""


class Phase(Enum):
    """Where a serving process is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    """It says that it is not ready, and serves whatever still comes: gateways take time to notice."""
    FINISHING = "finishing"
    """It takes no new requests; streams that are open may finish."""


_MAY_FOLLOW = {
    Phase.STARTING: (Phase.SERVING,),
    Phase.SERVING: (Phase.DRAINING,),
    Phase.DRAINING: (Phase.FINISHING,),
    Phase.FINISHING: (),
}


class Lifecycle:
    """The phase of one process, and the only one to change it."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self._watchers: list[Callable[[Phase], None]] = []

    def on_entered(self, watcher: Callable[[Phase], None]) -> None:
        """Call `watcher` with the present phase now, and with each later one when it begins."""
        self._watchers.append(watcher)
        watcher(self.phase)

    def enter(self, phase: Phase) -> None:
        """Go to the next phase.

        Raises:
            ValueError: that phase may not follow the present one: a bug in endpick.
        """
        if phase not in _MAY_FOLLOW[self.phase]:
            raise ValueError(f"{phase} after {self.phase}")
        self.phase = phase
        for watcher in self._watchers:
            watcher(phase)


class Readiness:
    """Whether the process takes requests: what `/healthz` and the health service say of it."""

    def __init__(self, lifecycle: Lifecycle, board: HealthBoard, remarks: Callable[[], tuple[str, ...]]) -> None:
        """`remarks` says what is wrong with a process that serves all the same."""
        self._lifecycle = lifecycle
        self._board = board
        self._remarks = remarks
        self._stalled: str | None = None
        self._stands_by: str | None = None
        lifecycle.on_entered(lambda _phase: self._tell())

    def report(self) -> tuple[bool, str]:
        """Whether it is ready, and the text of `/healthz`."""
        reason = self._reason()
        return reason is None, "".join(f"{line}\n" for line in (reason or "ok", *self._remarks()))

    def stalled(self, reason: str | None) -> None:
        """The event loop stood still for too long, or has turned for long enough since."""
        self._stalled = reason
        self._tell()

    def stand_by(self, reason: str) -> None:
        """Another replica is to serve, for this reason; or, where it is empty, this one."""
        if (reason or None) != self._stands_by:
            self._stands_by = reason or None
            self._tell()

    def _reason(self) -> str | None:
        return self._stalled or self._stands_by if self._lifecycle.phase is Phase.SERVING else self._lifecycle.phase.value

    def _tell(self) -> None:
        self._board.set_ready(self._reason() is None)


class StoppedWhileStarting(Exception):  # noqa: N818 - what the operator wanted, not an error
    """The process was told to end before it served; what it had started has been stopped again."""


async def unless(stop: asyncio.Event, step: Coroutine[None, None, T]) -> T:
    """Take a step of the start, which may last; it is cancelled if the process is to end meanwhile.

    Raises:
        StoppedWhileStarting: it was cancelled.
    """
    taken, stopped = asyncio.ensure_future(step), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((taken, stopped), return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            return taken.result()
        taken.cancel()
        await asyncio.wait((taken,))
        raise StoppedWhileStarting
    finally:
        stopped.cancel()


class DrainTime:
    """The time after SIGTERM in which new streams, and new connections, are still served."""

    def __init__(self, server: Server, health: Server, count: Callable[[int], None]) -> None:
        """`count` is told how many streams begin on `server` meanwhile; who is connected to `health` only may still come to `server`."""
        self._servers = (server, health)
        self._counters = server.counters
        self._count = count

    async def wait(self, seconds: float, hasten: asyncio.Event) -> str:
        """Wait as long as a gateway is connected, but no longer than `seconds`, nor than until `hasten` is set; returns why it is over."""
        begun = self._counters.streams_opened
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._count(self._counters.streams_opened - begun)
            begun = self._counters.streams_opened
            left = deadline - asyncio.get_running_loop().time()
            if not any(server.connections for server in self._servers):
                return "no gateway is connected"
            if left <= 0:
                return "the drain time is over"
            with suppress(TimeoutError):
                await asyncio.wait_for(hasten.wait(), min(left, _LOOK_SECONDS))
                return "a second signal came"
