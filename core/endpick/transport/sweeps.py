"""What a server does about once a second: end what has taken too long. But not right after the process stood still."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

_SECONDS = 1.0
_LATE_SECONDS = 2.0
"""A sweep that comes so much later tells of a process that was stopped, or whose loop was held."""


class Sweeps:
    """Calls a function about once a second."""

    def __init__(self, step: Callable[[float], None]) -> None:
        """Keep what is needed.

        Args:
            step: Gets monotonic seconds. It is left out where the call comes late: what clients have sent meanwhile has not been read
                yet, and by the clock alone they would all be too late. Those that are will be so in a second, too.
        """
        self._step = step
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._due = time.monotonic() + _SECONDS
        self._timer = asyncio.get_running_loop().call_later(_SECONDS, self._sweep)

    def stop(self) -> None:
        """Call it no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        now = time.monotonic()
        is_late = now - self._due > _LATE_SECONDS
        self.start()
        if not is_late:
            self._step(now)
