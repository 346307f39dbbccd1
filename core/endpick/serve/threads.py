"""The threads for what is to hold up no request: files, reloads, compression; a plugin that keeps its own busy keeps none of endpick's."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OWN = ("endpick", "endpick_builtin")
_PASSED_OVER = frozenset({*sys.stdlib_module_names, "uvloop"})
"""They ask for others, as `asyncio.to_thread` does."""
_MOST_PACKAGES = 32
"""With threads of their own; what others ask for shares threads."""


class _Threads(ThreadPoolExecutor):
    """The default executor of the event loop: each package that has something done in a thread has threads of its own.

    Python's own has one queue for all. A plugin whose calls do not come back, such as requests without a time limit, would fill it, and
    reloads, scrapes, new endpoints and the end of the process would wait behind them.
    """

    def __init__(self, count: int) -> None:
        """`count` threads at most, for endpick and for each package beside it."""
        super().__init__(count, "endpick")
        self._count = count
        self._of_others: dict[str, ThreadPoolExecutor] = {}

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See `Executor`; in a thread of the package that asks."""
        package = _package_of(sys._getframe(1))
        if package in _OWN:
            return super().submit(fn, *args, **kwargs)
        return self._threads_of(package).submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`; of all packages."""
        for threads in (*self._of_others.values(),):
            threads.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _threads_of(self, package: str) -> ThreadPoolExecutor:
        known = self._of_others
        if package not in known and len(known) >= _MOST_PACKAGES:
            package = ""
        if package not in known:
            known[package] = ThreadPoolExecutor(self._count, f"endpick-{package[:20]}")
        return known[package]


def _package_of(frame: FrameType | None) -> str:
    """Whose code it is that has something done in a thread."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        package = name.partition(".")[0] if type(name) is str else ""
        if package not in _PASSED_OVER:
            return package
        frame = frame.f_back
    return _OWN[0]


def started_threads() -> ThreadPoolExecutor:
    """As many threads as asyncio would start one by one.

    All of them now. Where the system has no more of them later, as when a container has used up what it may have, work that finds no
    thread would fail: the first scrape of a long page, or a reload.
    """
    count = min(32, (os.cpu_count() or 1) + 4)
    executor, are_there = _Threads(count), threading.Event()
    with suppress(RuntimeError):  # there are no more already now: the rest may come later, as asyncio has it
        for _ in range(count):
            executor.submit(are_there.wait)
    are_there.set()
    return executor
