"""The phases, the readiness and the drain time of a serving process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

from endpick.transport.server import Server
from endpick.transport.services import HealthBoard

T = TypeVar("T")

_POLL_SECONDS = 0.05


class Phase(Enum):
    """A phase of a serving process; each follows the one before it here."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"  # not ready, but serves new requests until gateways have noticed
    FINISHING = "finishing"  # no new requests; open streams may finish


_NEXT = {Phase.STARTING: Phase.SERVING, Phase.SERVING: Phase.DRAINING, Phase.DRAINING: Phase.FINISHING, Phase.FINISHING: None}


class Lifecycle:
    """Holds the current phase of one process, and reports each new phase to watchers."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self._watchers: list[Callable[[Phase], None]] = []

    def on_entered(self, watcher: Callable[[Phase], None]) -> None:
        """Call `watcher` with the current and each later phase."""
        self._watchers.append(watcher)
        watcher(self.phase)

    def enter(self, phase: Phase) -> None:
        """Enter the next phase, and call the watchers. Raises ValueError for any other phase."""
        if phase is not _NEXT[self.phase]:
            raise ValueError(f"{phase} after {self.phase}")
        self.phase = phase
        for watcher in self._watchers:
            watcher(phase)


class Gateway(Protocol):
    """A gateway that this process runs itself."""

    async def start(self, ext_proc_port: int, set_down: Callable[[str], None]) -> None:
        """Start to serve clients; later, `set_down` receives the reason of an outage, or "".

        Raises StartRefused.
        """

    def drain(self) -> None:
        """Refuse new connections; the gateway ends once its open requests are answered."""

    async def stop(self) -> None:
        """Stop the gateway at once, and wait until it has ended."""


class Cause(Enum):
    """A part of the process that can make it unready; the first one with a reason is reported."""

    EVENT_LOOP = "event loop"
    STAND_BY = "stand-by"
    GATEWAY = "gateway"
    ENDPOINTS = "endpoints"


class Readiness:
    """Readiness for `/healthz` and gRPC health."""

    def __init__(self, lifecycle: Lifecycle, board: HealthBoard, remarks: Callable[[], tuple[str, ...]]) -> None:
        """Make the readiness of a process; `remarks` are problems that do not affect it."""
        self._lifecycle = lifecycle
        self._board = board
        self._remarks = remarks
        self._reasons: dict[Cause, str | None] = dict.fromkeys(Cause)
        lifecycle.on_entered(lambda _phase: self._publish())

    @property
    def is_ready(self) -> bool:
        """True if health checks succeed."""
        return self._reason() is None

    def report(self) -> tuple[bool, str]:
        """Return the readiness, and the text of `/healthz` with the reason and the remarks."""
        reason = self._reason()
        return reason is None, "".join(f"{line}\n" for line in (reason or "ok", *self._remarks()))

    def set_reason(self, cause: Cause, reason: str | None) -> None:
        """Set why a part makes the process unready; None or empty if it does not."""
        if (reason or None) != self._reasons[cause]:
            self._reasons[cause] = reason or None
            self._publish()

    def _reason(self) -> str | None:
        serving = next(filter(None, self._reasons.values()), None)
        return serving if self._lifecycle.phase is Phase.SERVING else self._lifecycle.phase.value

    def _publish(self) -> None:
        self._board.set_ready(self.is_ready)


class StoppedWhileStarting(Exception):  # noqa: N818 - requested by the operator, not an error
    """Raised when the operator stops the process before it serves requests."""


async def unless(stop: asyncio.Event, step: Coroutine[None, None, T]) -> T:
    """Run a step; when `stop` is set, cancel it and raise StoppedWhileStarting."""
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


async def wait_for_gateways(server: Server, health: Server, seconds: float, hasten: asyncio.Event, count: Callable[[int], None]) -> str:
    """Wait for gateways to leave, for `seconds` or until `hasten` is set; returns the reason.

    A gateway connected only to `health` may still open streams on `server`. `count` gets the number of new streams.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    counted = server.counters.streams_opened
    while True:
        opened = server.counters.streams_opened
        count(opened - counted)
        counted = opened
        left = deadline - loop.time()
        if not server.connections and not health.connections:
            return "no gateway is connected"
        if left <= 0:
            return "the drain time is over"
        with suppress(TimeoutError):
            await asyncio.wait_for(hasten.wait(), min(left, _POLL_SECONDS))
            return "a second signal came"
