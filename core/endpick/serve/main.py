"""Runs the serving process on its own event loop: signals in, start-up report out."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from endpick.planning.plan import Plan
from endpick.serve.process import Ports, serve
from endpick.serve.report import startup_table
from endpick.serve.settings import ServeSettings

_log = logging.getLogger("endpick.serve")


def run(plan: Plan, settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        StartupError: a port, a plugin or the discovery would not start.
        ExceptionGroup: plugins that would not stop.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_signalled(plan, settings))


async def _serve_until_signalled(plan: Plan, settings: ServeSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _report_plan(plan)
    await serve(plan, settings, stop, _report_ports)
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


def _report_ports(ports: Ports) -> None:
    _log.info("serving", extra={"ext_proc_port": ports.ext_proc, "health_port": ports.health, "metrics_port": ports.metrics})


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - not installed on every platform
    except ImportError:
        return None
    return uvloop.Loop
