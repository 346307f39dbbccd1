"""The threads for what is to hold up no request: files, reloads, compression; a plugin that keeps its own busy keeps none of endpick's."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OWN = "endpick"
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
        threads = None if package == _OWN else self._threads_of(package)
        return super().submit(fn, *args, **kwargs) if threads is None else threads.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`; of all packages."""
        for threads in tuple(self._of_others.values()):
            threads.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _threads_of(self, package: str) -> ThreadPoolExecutor | None:
        """Those of a package; None where the system has no threads for it, so that it is served by endpick's."""
        known = self._of_others
        if package not in known and len(known) >= _MOST_PACKAGES:
            package = ""
        if package not in known:
            threads = ThreadPoolExecutor(self._count, f"endpick-{package[:20]}")
            if not _are_started(threads, self._count):
                threads.shutdown(wait=False)
                return None
            known[package] = threads
        return known[package]


def _are_started(executor: ThreadPoolExecutor, count: int) -> bool:
    """Whether it has as many threads as it may have; later it needs no further one."""
    are_there = threading.Event()
    try:
        for _ in range(count):
            executor.submit(are_there.wait)
    except RuntimeError:
        return False
    finally:
        are_there.set()
    return True


def _package_of(frame: FrameType | None) -> str:
    """Whose code it is that has something done in a thread."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        package = name.partition(".")[0] if type(name) is str else ""
        if package not in _PASSED_OVER:
            return package
        frame = frame.f_back
    return _OWN


def started_threads() -> ThreadPoolExecutor:
    """As many threads as asyncio would start one by one.

    All of them now. Where the system has no more of them later, as when a container has used up what it may have, work that finds no
    thread would fail: the first scrape of a long page, or a reload.
    """
    count = min(32, (os.cpu_count() or 1) + 4)
    executor = _Threads(count)
    _are_started(executor, count)  # or there are no more already now: the rest may come later, as asyncio has it
    return executor
