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
    """A phase of a serving process."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"  # not ready, but serves new requests until gateways have noticed
    FINISHING = "finishing"  # no new requests; open streams may finish


_NEXT = {Phase.STARTING: Phase.SERVING, Phase.SERVING: Phase.DRAINING, Phase.DRAINING: Phase.FINISHING, Phase.FINISHING: None}


class Lifecycle:
    """The phase of one process."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self._watchers: list[Callable[[Phase], None]] = []

    def on_entered(self, watcher: Callable[[Phase], None]) -> None:
        """Call `watcher` with the current and each later phase."""
        self._watchers.append(watcher)
        watcher(self.phase)

    def enter(self, phase: Phase) -> None:
        """Go to the next phase."""
        if phase is not _NEXT[self.phase]:
            raise ValueError(f"{phase} after {self.phase}")
        self.phase = phase
        for watcher in self._watchers:
            watcher(phase)


class Gateway(Protocol):
    """A gateway that this process runs itself."""

    async def start(self, ext_proc_port: int, set_down: Callable[[str], None]) -> None:
        """Serve clients. Raises StartRefused. Later, `set_down` gets why it does not serve, or an empty text."""

    def drain(self) -> None:
        """Begin to refuse new connections; it ends once open requests are answered."""

    async def stop(self) -> None:
        """End now."""


class Readiness:
    """Readiness for `/healthz` and gRPC health."""

    def __init__(self, lifecycle: Lifecycle, board: HealthBoard, remarks: Callable[[], tuple[str, ...]]) -> None:
        """`remarks` are problems that do not affect readiness."""
        self._lifecycle = lifecycle
        self._board = board
        self._remarks = remarks
        self._stalled: str | None = None
        self._standing_by: str | None = None
        self._without_endpoints: str | None = None
        self._without_gateway: str | None = None
        lifecycle.on_entered(lambda _phase: self._publish())

    @property
    def is_ready(self) -> bool:
        """True if health checks succeed."""
        return self._reason() is None

    def report(self) -> tuple[bool, str]:
        """Readiness, and the text of `/healthz`."""
        reason = self._reason()
        return reason is None, "".join(f"{line}\n" for line in (reason or "ok", *self._remarks()))

    def stalled(self, reason: str | None) -> None:
        """Set why a stalled event loop makes the process unready."""
        self._stalled = reason
        self._publish()

    def stand_by(self, reason: str) -> None:
        """Set why another replica serves; else empty."""
        if (reason or None) != self._standing_by:
            self._standing_by = reason or None
            self._publish()

    def without_endpoints(self, reason: str) -> None:
        """Set why no endpoint can serve; else empty."""
        if (reason or None) != self._without_endpoints:
            self._without_endpoints = reason or None
            self._publish()

    def without_gateway(self, reason: str) -> None:
        """Set why the gateway of this process does not serve; else empty."""
        self._without_gateway = reason or None
        self._publish()

    def _reason(self) -> str | None:
        serving = self._stalled or self._standing_by or self._without_gateway or self._without_endpoints
        return serving if self._lifecycle.phase is Phase.SERVING else self._lifecycle.phase.value

    def _publish(self) -> None:
        self._board.set_ready(self.is_ready)


class StoppedWhileStarting(Exception):  # noqa: N818 - requested by the operator, not an error
    """Stopped before serving."""


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
    """Wait until no gateway is connected, `seconds` have passed, or `hasten` is set; returns the reason.

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
