"""Watches the event loop from a thread: says what holds it when it stands still, and keeps a process that stands still out of service."""

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
from typing import cast

from endpick.api.plugin import Parameters, Plugin
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.watchdog")

_BEATS_PER_WARNING = 4
"""So often the loop shows that it turns in the time after which it counts as standing still."""
_LONGEST_NAME = 1000
_module_of = type.__dict__["__module__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_attributes_of = Plugin.__dict__["__dict__"].__get__
"""Asked of Python itself: what is called `self` in a stack may answer with code of its own, in the thread that is to watch."""


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """When a loop counts as standing still.

    Attributes:
        warning_seconds: So long without a turn is counted and logged, with the stack.
        limit_seconds: After so long the process is not ready any more; it is again once the loop has turned for as long.
    """

    warning_seconds: float = 1.0
    limit_seconds: float = 10.0


class Watchdog:
    """Started on the loop that it watches. Nothing in it waits for the loop, so that it works while that stands still."""

    def __init__(
        self,
        settings: WatchdogSettings,
        metrics: EndpickMetrics,
        set_stalled: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what is needed.

        Args:
            settings: When a loop counts as standing still.
            metrics: Where the times are counted.
            set_stalled: Called on the loop, once it turns again, with the reason why the process is not ready; with None when it is again.
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
        self._not_ready_until = 0.0
        self._holder: str | None = None

    def start(self) -> None:
        """Watch the running loop, which must be that of the calling thread."""
        loop, interval = asyncio.get_running_loop(), self._settings.warning_seconds / _BEATS_PER_WARNING
        watched = threading.get_ident()
        self._beat_at = self._clock()

        def beat() -> None:
            self._beat(self._clock())
            self._timer = loop.call_later(interval, beat)

        self._timer = loop.call_later(interval, beat)
        self._thread = threading.Thread(target=self._watch, args=(watched, interval), name="endpick-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, now: float) -> None:
        """The loop turns. A stall is settled here, also one that kept the thread from running because it held Python's lock."""
        stood_still = now - self._beat_at
        self._beat_at = now
        if stood_still >= self._settings.warning_seconds:
            self._metrics.loop_stalls.inc()
            self._metrics.loop_stalled_seconds.inc(stood_still)
            advice = "see what held it; beyond --stall-limit this replica is not ready for as long"
            extra = {"advice": advice}
            _log.error("the event loop stood still for %.1f s%s", stood_still, f": {self._holder}" if self._holder else "", extra=extra)
        if stood_still >= self._settings.limit_seconds:
            self._not_ready_until = now + self._settings.limit_seconds
            self._set_stalled(f"the event loop stood still for {stood_still:.1f} s")
        elif self._not_ready_until and now >= self._not_ready_until:
            self._not_ready_until = 0.0
            self._set_stalled(None)
        self._holder = None

    def _watch(self, watched: int, interval: float) -> None:
        """The thread: once for each stall, say what the loop's thread is doing."""
        reported = 0.0
        while not self._stopped.wait(interval):
            beat_at = self._beat_at
            if self._clock() - beat_at < self._settings.warning_seconds or beat_at == reported:
                continue
            reported = beat_at
            frame = sys._current_frames().get(watched)
            if frame is not None:
                self._holder = holder_of(frame)
                _log.error(
                    "the event loop has stood still for %.1f s: %s\n%s",
                    self._clock() - beat_at,
                    self._holder,
                    "".join(traceback.format_stack(frame)),
                )


def holder_of(frame: FrameType | None) -> str:
    """Which instance runs in a stack, from its innermost frame outwards; the function itself where no plugin does."""
    where = "" if frame is None else _place_of(frame)
    while frame is not None:
        known = frame.f_locals
        plugin = known.get("self") if type(known) is dict else None  # a class that is being made may have a mapping of its own
        if issubclass(type(plugin), Plugin):
            return f"{_described(cast('Plugin[Parameters]', plugin))} runs {where}"
        frame = frame.f_back
    return f"{where} runs"


def _place_of(frame: FrameType) -> str:
    code = frame.f_code
    return f"{str.__str__(code.co_qualname)[:_LONGEST_NAME]} in {str.__str__(code.co_filename)[:_LONGEST_NAME]}:{frame.f_lineno}"


def _described(plugin: Plugin[Parameters]) -> str:
    kind, name = type(plugin), _attributes_of(plugin).get("name")
    module = _module_of(kind)
    shown = name if type(name) is str else "without a name"
    return f"plugin '{shown}' ({module if type(module) is str else '?'}.{_qualname_of(kind)})"
