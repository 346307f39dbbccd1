"""Watches the event loop from a thread: logs the stack that blocks it, and fails health while it keeps blocking."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from endpick.api.plugin import Plugin
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.watchdog")

_BEATS_PER_WARNING = 4


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """When the event loop counts as stalled.

    Attributes:
        warning_seconds: A stall of this length is counted and logged with the stack.
        limit_seconds: A stall of this length makes the process unready for the same time.
    """

    warning_seconds: float = 1.0
    limit_seconds: float = 10.0


class Watchdog:
    """Schedules a heartbeat on the event loop and checks it from a thread."""

    def __init__(
        self,
        settings: WatchdogSettings,
        metrics: EndpickMetrics,
        set_stalled: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a stopped watchdog.

        Args:
            settings: When the loop counts as stalled.
            metrics: Where stalls are counted.
            set_stalled: Called on the loop after a stall with the reason why the process is unready, and with None once it is ready.
            clock: Monotonic seconds.
        """
        self._settings = settings
        self._clock = clock
        self._set_stalled = set_stalled
        self._metrics = metrics
        self._beat_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unready_until = 0.0
        self._blocked_by = ""

    def start(self) -> None:
        """Watch the running loop; called in its thread."""
        loop, interval = asyncio.get_running_loop(), self._settings.warning_seconds / _BEATS_PER_WARNING
        self._beat_at = self._clock()

        def beat() -> None:
            self._beat(self._clock())
            self._timer = loop.call_later(interval, beat)

        self._timer = loop.call_later(interval, beat)
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(), interval), name="endpick-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, now: float) -> None:
        stalled = now - self._beat_at
        self._beat_at = now
        if stalled >= self._settings.warning_seconds:
            self._metrics.loop_stalls.inc()
            self._metrics.loop_stalled_seconds.inc(stalled)
            advice = "fix the code that blocked it; a replica that stalls longer than --stall-limit is not ready for that time"
            blocked_by = f": {self._blocked_by}" if self._blocked_by else ""
            _log.error("the event loop stood still for %.1f s%s", stalled, blocked_by, extra={"advice": advice})
        if stalled >= self._settings.limit_seconds:
            self._unready_until = now + self._settings.limit_seconds
            self._set_stalled(f"the event loop stood still for {stalled:.1f} s")
        elif self._unready_until and now >= self._unready_until:
            self._unready_until = 0.0
            self._set_stalled(None)
        self._blocked_by = ""

    def _watch(self, watched: int, interval: float) -> None:
        """Log the stack of the loop's thread once per stall."""
        reported = 0.0
        while not self._stopped.wait(interval):
            beat_at = self._beat_at
            if self._clock() - beat_at < self._settings.warning_seconds or beat_at == reported:
                continue
            reported = beat_at
            frame = sys._current_frames().get(watched)
            if frame is not None:
                self._blocked_by = blocking_code(frame)
                stack = "".join(traceback.format_stack(frame))
                _log.error("the event loop has stood still for %.1f s: %s\n%s", self._clock() - beat_at, self._blocked_by, stack)


def blocking_code(frame: FrameType | None) -> str:
    """The innermost plugin instance in a stack and the function that runs."""
    where = ""
    if frame is not None:
        code = frame.f_code
        where = f"{code.co_qualname} in {code.co_filename}:{frame.f_lineno}"
    while frame is not None:
        plugin = frame.f_locals.get("self")
        if isinstance(plugin, Plugin):
            kind = type(plugin)
            return f"plugin '{plugin.name}' ({kind.__module__}.{kind.__qualname__}) runs {where}"
        frame = frame.f_back
    return f"{where} runs"
