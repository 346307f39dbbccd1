"""Watches the event loop and the resident memory."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.plugin import Plugin
from endpick.requests.memory import Memory, OverloadStage
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.watchdog")

_BEATS_PER_WARNING = 4


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """Limits of a stall: from `warning_seconds` it is logged, from `limit_seconds` health fails."""

    warning_seconds: float = 1.0
    limit_seconds: float = 10.0


class Watchdog:
    """Checks a heartbeat of the event loop from a thread."""

    def __init__(
        self,
        settings: WatchdogSettings,
        metrics: EndpickMetrics,
        set_stalled: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a watchdog; it calls `set_stalled` on the loop, with the reason or None once ready."""
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
        """Start the heartbeat on the running event loop, and the thread that checks it."""
        loop, interval = asyncio.get_running_loop(), self._settings.warning_seconds / _BEATS_PER_WARNING
        self._beat_at = self._clock()

        def beat() -> None:
            self._beat(self._clock())
            self._timer = loop.call_later(interval, beat)

        self._timer = loop.call_later(interval, beat)
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(), interval), name="endpick-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat, and wait for the thread to end."""
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
    """Describe the innermost plugin of a stack and the running function, for a log message."""
    place = ""
    if frame is not None:
        code = frame.f_code
        place = f"{code.co_qualname} in {code.co_filename}:{frame.f_lineno}"
    while frame is not None:
        plugin = frame.f_locals.get("self")
        if isinstance(plugin, Plugin):
            kind = type(plugin)
            return f"plugin '{plugin.name}' ({kind.__module__}.{kind.__qualname__}) runs {place}"
        frame = frame.f_back
    return f"{place} runs"


_overload_log = logging.getLogger("endpick.overload")

_INTERVAL_SECONDS = 1.0
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_EFFECT = {
    OverloadStage.NORMAL: "everything is served",
    OverloadStage.SHEDDING: "requests with negative priority get 429",
    OverloadStage.REFUSING: "new requests get 503",
}


def available_bytes() -> int:
    """Return the container's memory limit in bytes, or the memory of the machine without one."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # `max` is no number: no limit
            return min(int(path.read_text(encoding="ascii")), machine)
    return machine


class OverloadWatch(Collector):
    """Measures the resident memory every second, and logs changes of the overload stage."""

    def __init__(self, memory: Memory, registry: CollectorRegistry) -> None:
        self._memory = memory
        self._timer: asyncio.TimerHandle | None = None
        memory.on_stage.append(self._entered)
        registry.register(self)

    def start(self) -> None:
        """Measure now and then every second, on the running event loop."""
        self._memory.measure()
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self.start)

    def stop(self) -> None:
        """Cancel the next measurement; without effect before `start`."""
        if self._timer is not None:
            self._timer.cancel()

    def remarks(self) -> tuple[str, ...]:
        """Return a line for `/healthz` while memory is short, else nothing."""
        stage = self._memory.stage
        return () if stage is OverloadStage.NORMAL else (f"short of memory: {_EFFECT[stage]}",)

    def collect(self) -> Iterator[Metric]:
        memory = self._memory
        stages = GaugeMetricFamily("endpick_overload_stage", "1 for the current memory overload stage.", labels=("stage",))
        for stage in OverloadStage:
            stages.add_metric((stage.name.lower(),), stage is memory.stage)
        yield stages
        yield GaugeMetricFamily("endpick_memory_limit_bytes", "Memory the process may use: --max-memory.", memory.limit_bytes)
        yield GaugeMetricFamily("endpick_memory_held_bytes", "Bytes of undecided request bodies.", memory.held_bytes)
        refusals = CounterMetricFamily("endpick_overload_refusals", "Requests refused for lack of memory.", labels=("action",))
        refusals.add_metric(("shed",), memory.shed)
        refusals.add_metric(("refused",), memory.refused)
        yield refusals

    def _entered(self, stage: OverloadStage) -> None:
        memory = self._memory
        figures = {"stage": stage.name.lower(), "resident_bytes": memory.resident(), "limit_bytes": memory.limit_bytes}
        if stage is OverloadStage.NORMAL:
            _overload_log.info("memory is sufficient again: %s", _EFFECT[stage], extra=figures)
        else:
            _overload_log.warning(
                "short of memory: %s; raise the container's memory and --max-memory, or add replicas", _EFFECT[stage], extra=figures
            )
