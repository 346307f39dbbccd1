"""Runs a serving process on an event loop, with signal handlers and start-up reports."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import NoReturn

from endpick.diagnostics import ExitCode
from endpick.diagnostics.tables import table
from endpick.engine.reload_log import Trigger
from endpick.host.discovery import request_path
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.serve.lifecycle import Phase, StoppedWhileStarting
from endpick.serve.logs import last_line
from endpick.serve.process import serve
from endpick.serve.settings import Control, Ports, ServeSettings
from endpick.transport.handover import Handover

_log = logging.getLogger("endpick.serve")

ANSWER_SECONDS = 2.0  # for a blocked event loop to notice the second signal
SAME_SIGNAL_SECONDS = 1.0
LEFTOVER_SECONDS = 4.0  # for tasks and threads of plugins
LAST_SECONDS = 30.0  # for connections, plugins and hook objects after the last stream
_SWITCH_SECONDS = 0.0005  # Python's default of 5 ms for holding the GIL is half a pick's budget


def run(plan: Plan, settings: ServeSettings, control: Control) -> None:
    """Serve a plan until SIGTERM or SIGINT; SIGHUP reloads it. Raises the errors of `serve`."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_until_signalled(plan, settings, control))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.enable()


async def _serve_until_signalled(plan: Plan, settings: ServeSettings, control: Control) -> None:
    loop = asyncio.get_running_loop()
    limit_seconds = settings.drain_timeout_seconds + settings.finish_timeout_seconds + LAST_SECONDS
    shutdown = _Shutdown(control, loop, limit_seconds)
    signal.signal(signal.SIGTERM, shutdown.signalled)
    signal.signal(signal.SIGINT, shutdown.signalled)
    signal.signal(signal.SIGHUP, lambda _number, _frame: loop.call_soon_threadsafe(control.request_reload, Trigger.SIGNAL))
    _report_plan(plan)
    if control.handover is not None:
        control.handover.start(lambda: shutdown.signalled(signal.SIGTERM, None))  # once the supervisor is gone
    try:
        await serve(plan, settings, control, partial(_started, control.handover))
    except StoppedWhileStarting:
        _log.info("stopped before it served")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _log.info("stopped")
    shutdown.finished()


class _Shutdown:
    """Stops the process in order at the first signal; the second signal ends the drain time.

    A third signal ends the process at once, as does a stop that takes too long, even while a plugin blocks the event loop. A worker may
    receive the same signal twice: from its supervisor, and directly if it was sent to the process group.
    """

    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop, limit_seconds: float) -> None:
        self._control = control
        self._first_at = -math.inf
        self._loop = loop
        self._limit_seconds = limit_seconds
        self._signals = 0

    def signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._control.handover is not None and now - self._first_at < SAME_SIGNAL_SECONDS:
            return
        self._signals += 1
        if self._signals == 1:
            self._first_at = now
            _later(self._limit_seconds, lambda: _end_at_once(f"it had not ended {self._limit_seconds:g} s after a signal"))
            self._loop.call_soon_threadsafe(self._control.stop.set)
        elif self._signals == 2 and self._control.lifecycle.phase is Phase.DRAINING:
            _later(ANSWER_SECONDS, self._require_answer)
            self._loop.call_soon_threadsafe(self._control.hasten.set)
        else:
            _end_at_once(f"{signal.Signals(number).name} came a {'second' if self._signals == 2 else 'third'} time")

    def finished(self) -> None:
        if self._signals:
            reason = f"tasks or threads of plugins had not ended {LEFTOVER_SECONDS:g} s after everything was stopped"
            _later(LEFTOVER_SECONDS, lambda: _end_at_once(reason, ExitCode.OK))

    def _require_answer(self) -> None:
        if self._control.lifecycle.phase is Phase.DRAINING:
            _end_at_once(f"it did not end the drain time within {ANSWER_SECONDS:g} s after a second signal")


def _end_at_once(reason: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Exit without `sys.exit`, which a plugin could catch, and without the locks of the log."""
    os.set_blocking(2, False)
    try:
        os.write(2, last_line(f"endpick ends at once: {reason}"))
    finally:
        os._exit(code)


def _later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not installed on every platform
    except ImportError:
        return None
    return uvloop.Loop


def _started(handover: Handover | None, ports: Ports) -> None:
    gc.collect()
    gc.freeze()  # objects made at start live as long as the process
    gc.set_threshold(10_000, 10, 5)  # a request in flight has about 100 objects; closed connections leave cycles
    gc.enable()
    if handover is not None:
        handover.ready(ports.metrics)
    _log.info(
        "serving" if handover is None else "worker serving",
        extra={
            "ext_proc_port": ports.ext_proc,
            "health_port": ports.health,
            "metrics_port": ports.metrics,
            "request_path": request_path(),
        },
    )


def _report_plan(plan: Plan) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(startup_table(plan))
        return
    for instance in plan.instances:
        candidate = instance.loaded.candidate
        _log.info(
            "plugin loaded",
            extra={
                "plugin": instance.name,
                "type": instance.type,
                "dist": candidate.distribution,
                "dist_version": candidate.version,
                "duration_ms": round(instance.loaded.load_seconds * 1000, 1),
                "consumes": [key.name for key in (*instance.subscriptions.consumes, *instance.subscriptions.consumes_optional)],
                "produces": [key.name for key in instance.subscriptions.produces],
                "reason": instance.reason,
            },
        )


_HEADER = ("name (type)", "from", "loaded", "consumes → produces")


def startup_table(plan: Plan) -> str:
    """Return the start-up table: a row per instance, a note per default that endpick filled in."""
    notes = "".join(f"note: {announcement.message}\n" for announcement in plan.announcements)
    return table(_HEADER, map(_row, plan.instances), stream=sys.stderr) + notes


def _row(instance: PlannedInstance) -> Sequence[str]:
    candidate = instance.loaded.candidate
    subscriptions = instance.subscriptions
    consumed = ", ".join(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    produced = ", ".join(key.name for key in subscriptions.produces)
    flow = f"{consumed} → {produced}".strip() if consumed or produced else ""
    origin = f"{candidate.distribution} {candidate.version}"
    return instance.label, origin, f"{instance.loaded.load_seconds * 1000:.1f} ms", flow
