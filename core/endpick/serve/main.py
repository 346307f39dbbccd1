"""Runs the serving process on its own event loop: signals in, start-up report out."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

from endpick.building import request_path
from endpick.planning.plan import Plan, PlanOutcome
from endpick.serve.process import Control, Ports, serve
from endpick.serve.report import startup_table
from endpick.serve.settings import ServeSettings

_log = logging.getLogger("endpick.serve")


def run(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP calls `replan` and lets what comes of it take over.

    Raises:
        Refused: a port, a plugin, the discovery or a hook object would not start.
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


def _started(ports: Ports) -> None:
    # What start-up left stays for good, so the garbage collector need not walk through it again and again: a tenth of a request's CPU.
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


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - not installed on every platform
    except ImportError:
        return None
    return uvloop.Loop
