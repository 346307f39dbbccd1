"""Runs the serving process on an event loop: connects it to signals, and reports the plan and the ports at start-up."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from endpick.diagnostics import ExitCode
from endpick.host.planning.plan import Plan, PlannedInstance, PlanOutcome
from endpick.installation import request_path
from endpick.serve.early_signals import EARLY_SIGNALS
from endpick.serve.lifecycle import Lifecycle, Phase, StoppedWhileStarting
from endpick.serve.logs import last_line
from endpick.serve.process import Control, Ports, ServeSettings, serve
from endpick.serve.uncaught import Uncaught

_log = logging.getLogger("endpick.serve")

ANSWER_SECONDS = 2.0
"""How long an event loop that a plugin holds up may take to notice the second signal."""
LEFT_SECONDS = 2.0
"""For what plugins left running when all has been stopped: tasks, and after them threads."""
LAST_SECONDS = 30.0
"""For what follows the last stream: connections, plugins and hook objects have limits of their own, which add up."""
_SWITCH_SECONDS = 0.0005
"""How long a thread that makes the plan of a reload, or shows hook objects a decision, may keep Python's lock while requests wait for it;
Python's own 5 ms are half of what a pick may take."""


def run(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome]) -> None:
    """Serve until SIGTERM or SIGINT. SIGHUP calls `replan`, and its plan replaces the current one.

    Raises:
        StartRefused: a port, a plugin, the discovery or a hook object would not start.
        ExceptionGroup: plugins that would not stop.
    """
    gc.freeze()  # modules and the plan stay, and are most of what there is: the collection at the end of the start passes over them
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            uncaught = Uncaught()
            try:
                _run_to_its_end(runner.get_loop(), _serve_until_signalled(plan, settings, replan, uncaught), uncaught)
            finally:
                _let_go_of_tasks(runner.get_loop(), uncaught)
    finally:
        # What is left is freed as the interpreter ends; Python would write what it warns of then into the log, as text of its own.
        warnings.simplefilter("ignore")
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.enable()


def _run_to_its_end(loop: asyncio.AbstractEventLoop, serving: Coroutine[None, None, None], uncaught: Uncaught) -> None:
    """Run the loop until the process is to end, also where a plugin's task or callback calls `sys.exit`, or stops the loop."""
    task = loop.create_task(serving)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except BaseException as problem:
            if task.done() or loop.is_closed():
                raise
            uncaught.loop_left(problem)


def _let_go_of_tasks(loop: asyncio.AbstractEventLoop, uncaught: Uncaught) -> None:
    """Cancel what plugins left running, and wait for it no longer than it may take: the runner would wait for ever."""
    if loop.is_closed():
        return
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _run_to_its_end(loop, _ended(tasks), uncaught)
    stubborn = [task for task in tasks if not task.done()]
    for task in stubborn:
        asyncio.tasks._unregister_task(task)  # what the runner does not know it does not wait for
    if stubborn:
        _log.warning("tasks that plugins left running do not end, and are left behind", extra={"tasks": len(stubborn)})


async def _ended(tasks: set[asyncio.Task[object]]) -> None:
    await asyncio.wait(tasks, timeout=LEFT_SECONDS)


async def _serve_until_signalled(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome], uncaught: Uncaught) -> None:
    control = Control(replan, Lifecycle(), uncaught=uncaught)
    loop = asyncio.get_running_loop()
    limit_seconds = settings.drain_timeout_seconds + settings.finish_timeout_seconds + LAST_SECONDS
    ending = _Ending(control.lifecycle, lambda number: loop.call_soon_threadsafe(_next(control, number).set), limit_seconds)
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {
        signal.SIGTERM: ending.signalled,
        signal.SIGINT: ending.signalled,
        signal.SIGHUP: lambda _number, _frame: loop.call_soon_threadsafe(control.reload.set),
    }
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if EARLY_SIGNALS.reload_asked:
        control.reload.set()
    _report_plan(plan)
    control.uncaught.install(loop)
    try:
        with control.uncaught.output_taken():
            await serve(plan, settings, control, _started)
    except StoppedWhileStarting:
        _log.info("told to end before it served")
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what asks for reloads may not have noticed the end, which is an orderly one
    _log.info("stopped")
    ending.stopped()


def _next(control: Control, signal_number: int) -> asyncio.Event:
    """What the first signal, and then the second, asks of `serve`."""
    return control.stop if signal_number == 1 else control.hasten


class _Ending:
    """Ends the process: in order at the first signal; at the second the drain time is over, or the process, if there is no drain time.

    It ends in any case when the order takes too long, when the second signal is not answered, and at the third. A handler of Python runs
    between two instructions of whatever the main thread does; one of the event loop would wait for a plugin that never answers. The time
    limits are threads, which have their turn beside such a plugin, too.
    """

    def __init__(self, lifecycle: Lifecycle, in_order: Callable[[int], object], limit_seconds: float) -> None:
        """`in_order` is called with 1 at the first signal, with 2 at the second if it comes in the drain time."""
        self._lifecycle = lifecycle
        self._in_order = in_order
        self._limit_seconds = limit_seconds
        self._signals = 0

    def signalled(self, number: int, _frame: FrameType | None) -> None:
        """For `signal.signal`."""
        self._signals += 1
        try:
            if self._signals == 1:
                _later(self._limit_seconds, lambda: _end_at_once(f"it had not ended {self._limit_seconds:g} s after a signal"))
            elif self._signals == 2 and self._lifecycle.phase is Phase.DRAINING:
                _later(ANSWER_SECONDS, self._require_answer)
            else:
                _end_at_once(f"{signal.Signals(number).name} came a {'second' if self._signals == 2 else 'third'} time")
        finally:  # also where no thread starts any more, as after a plugin has deleted `sys.stderr`
            self._in_order(self._signals)

    def stopped(self) -> None:
        """All has been stopped in order: what a plugin left running, such as a thread, keeps the process no longer than it may take."""
        if self._signals:
            why = f"what plugins left running had not ended {2 * LEFT_SECONDS:g} s after all was stopped"
            _later(2 * LEFT_SECONDS, lambda: _end_at_once(why, ExitCode.OK))

    def _require_answer(self) -> None:
        if self._lifecycle.phase is Phase.DRAINING:
            _end_at_once(f"it did not end the drain time within {ANSWER_SECONDS:g} s after a second signal")


def _end_at_once(reason: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    # Neither `sys.exit`, which a plugin could catch, nor the log, whose lock the main thread may hold.
    if select.select([], [2], [], 0)[1]:  # what reads the log may have stopped to
        os.write(2, last_line(f"endpick ends at once: {reason}"))
    os._exit(code)


def _later(seconds: float, act: Callable[[], object]) -> None:
    """Not at all where the system has no thread more: what is done so is a precaution, and neither a start nor an end may fail for it."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    with suppress(RuntimeError):
        timer.start()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - not installed on every platform
    except ImportError:
        return None
    return uvloop.Loop


def _started(ports: Ports) -> None:
    gc.collect()
    gc.freeze()  # what the start made lives as long as the process
    gc.set_threshold(10_000, 10, 1_000)  # a request in flight has about a hundred objects, and a full collection pauses all of them
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
