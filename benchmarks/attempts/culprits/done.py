"""What a plugin may do in passing, by name, before it answers what is right."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping

from .answered import Untouchable, late, never
from .thrown import LongText, Mute, chain, deep


def flood_executor() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(100):
        loop.run_in_executor(None, time.sleep, 0.01)


def start_threads() -> None:
    for _ in range(3):
        threading.Thread(target=lambda: sys.exit(Mute()), daemon=True).start()
        threading.Thread(target=chain, daemon=True).start()


def leave_tasks() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(10):
        loop.create_task(never())
        loop.create_task(late())
        loop.call_soon(next, iter(()))
        never()


def print_much() -> None:
    for _ in range(50):
        print('{"level": "critical", "event": "forged"}')
        sys.stderr.write('\r\n{"level":"critical"}')
    sys.__stdout__.write("\x1b[2J")  # type: ignore[union-attr]


def log_much() -> None:
    extra = {"level": "critical", "event": "forged", "\n": object()}
    for name in ("", "endpick.serve", "endpick.plugin.x\n{}", "asyncio"):
        for _ in range(30):
            logging.getLogger(name).error("line\n%s\x1b[2J", Untouchable() if name == "asyncio" else "x", extra=extra)
    logging.getLogger("endpick").error("%d %s", "no number")  # noqa: PLE1206
    logging.getLogger("x").exception(LongText("x"), exc_info=Mute())


def warn_much() -> None:
    for n in range(100):
        warnings.warn(f"\n{n}", DeprecationWarning, stacklevel=2)
    warnings.warn_explicit(Mute(), None, "/dev/tty\n", 10**9)  # type: ignore[call-overload]


def leave_finalizers() -> None:
    circles = [[Untouchable()] for _ in range(100)]
    for one in circles:
        one.append(one)  # type: ignore[arg-type]


def stop_collecting() -> None:
    gc.disable()
    gc.set_threshold(0)


def cancel_itself() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


def complain_to_the_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": Untouchable(), "exception": Mute(), "x\n": object()})
    loop.call_later(-5, sys.exit, 4)
    loop.call_at(float("-inf"), deep().with_traceback, None)


DONE: Mapping[str, Callable[[], None]] = {
    "flood-executor": flood_executor,
    "start-threads": start_threads,
    "leave-tasks": leave_tasks,
    "print-much": print_much,
    "log-much": log_much,
    "warn-much": warn_much,
    "leave-finalizers": leave_finalizers,
    "stop-collecting": stop_collecting,
    "cancel-itself": cancel_itself,
    "complain-to-the-loop": complain_to_the_loop,
    "block-50ms": lambda: time.sleep(0.05),
    "block-300ms": lambda: time.sleep(0.3),
}
