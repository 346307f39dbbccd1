"""Runs the serving process on an event loop: connects it to signals, and reports the plan and the ports at start-up."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from endpick.diagnostics import ExitCode
from endpick.installation import request_path
from endpick.planning.plan import Plan, PlannedInstance, PlanOutcome
from endpick.serve.process import Control, Ports, ServeSettings, serve

_log = logging.getLogger("endpick.serve")

LAST_SECONDS = 30.0
"""For what follows the drain: connections, plugins and hook objects have limits of their own, which add up."""


def run(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once. SIGHUP calls `replan`, and its plan replaces the current one.

    Raises:
        StartRefused: a port, a plugin, the discovery or a hook object would not start.
        ExceptionGroup: plugins that would not stop.
    """
    gc.freeze()  # modules and the plan stay, and are most of what there is: the collection at the end of the start passes over them
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_until_signalled(plan, settings, replan))
    finally:
        gc.enable()


async def _serve_until_signalled(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    control = Control(asyncio.Event(), asyncio.Event(), replan)
    loop = asyncio.get_running_loop()
    ending = _Ending(lambda: loop.call_soon_threadsafe(control.stop.set), settings.drain_timeout_seconds + LAST_SECONDS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending.signalled)
    loop.add_signal_handler(signal.SIGHUP, control.reload.set)
    _report_plan(plan)
    await serve(plan, settings, control, _started)
    _log.info("stopped")


class _Ending:
    """Ends the process: in order at the first signal, at once at the second, and in any case when the order takes too long.

    A handler of Python runs between two instructions of whatever the main thread does; one of the event loop would wait for a plugin that
    never answers. The time limit is a thread, which has its turn beside such a plugin, too.
    """

    def __init__(self, in_order: Callable[[], object], limit_seconds: float) -> None:
        self._in_order = in_order
        self._limit_seconds = limit_seconds
        self._limit: threading.Timer | None = None

    def signalled(self, number: int, _frame: FrameType | None) -> None:
        """For `signal.signal`."""
        if self._limit is not None:
            _end_at_once(f"{signal.Signals(number).name} came a second time")
        self._limit = threading.Timer(self._limit_seconds, _end_at_once, (f"it had not ended {self._limit_seconds:g} s after a signal",))
        self._limit.daemon = True
        self._limit.start()
        self._in_order()


def _end_at_once(reason: str) -> NoReturn:
    # Neither `sys.exit`, which a plugin could catch, nor the log, whose lock the main thread may hold.
    os.write(2, f"endpick ends at once: {reason}\n".encode())
    os._exit(ExitCode.FAILED)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - not installed on every platform
    except ImportError:
        return None
    return uvloop.Loop


def _started(ports: Ports) -> None:
    # What start-up made lives as long as the process, so the garbage collector need not visit it: that would be a tenth of a request's CPU.
    gc.collect()
    gc.freeze()
    gc.enable()
    _log.info(
        "serving",
        extra={
            "ext_proc_port": ports.ext_proc,
            "health_port": ports.health,
            "metrics_port": ports.metrics,
            "request_path": request_path(),
        },
    )


def _report_plan(plan: Plan) -> None:
    """A table for people, an event per instance for machines."""
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


_HEADER = ("instance", "type", "from", "loaded", "consumes → produces")


def startup_table(plan: Plan) -> str:
    """One line per instance, then a note for each part of the plan that endpick filled in."""
    rows = [_HEADER, *(_row(instance) for instance in plan.instances)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"note: {announcement.message}" for announcement in plan.announcements]
    return "\n".join((*lines, *notes, ""))


def _row(instance: PlannedInstance) -> Sequence[str]:
    candidate = instance.loaded.candidate
    subscriptions = instance.subscriptions
    consumed = ", ".join(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    produced = ", ".join(key.name for key in subscriptions.produces)
    flow = f"{consumed} → {produced}".strip() if consumed or produced else ""
    origin = f"{candidate.distribution} {candidate.version}"
    return instance.name, instance.type, origin, f"{instance.loaded.load_seconds * 1000:.1f} ms", flow
