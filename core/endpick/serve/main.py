"""Runs the serving process on an event loop: connects it to signals, and reports the plan and the ports at start-up."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence

from endpick.installation import request_path
from endpick.planning.plan import Plan, PlannedInstance, PlanOutcome
from endpick.serve.process import Control, Ports, ServeSettings, serve

_log = logging.getLogger("endpick.serve")


def run(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP calls `replan`, and its plan replaces the current one.

    Raises:
        StartRefused: a port, a plugin, the discovery or a hook object would not start.
        ExceptionGroup: plugins that would not stop.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_signalled(plan, settings, replan))


async def _serve_until_signalled(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    control = Control(asyncio.Event(), asyncio.Event(), replan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, control.stop.set)
    loop.add_signal_handler(signal.SIGHUP, control.reload.set)
    _report_plan(plan)
    await serve(plan, settings, control, _started)
    _log.info("stopped")


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
