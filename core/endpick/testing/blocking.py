"""Notices plugin code that blocks its thread: opens a file, connects a blocking socket, resolves a name, starts a process, sleeps.

Python tells *audit hooks* of all of these, also when they happen in C or in a library, and a hook needs nothing patched. Timing would
be the alternative; it fails on busy machines and misses a file that happens to be cached. Only `time.sleep` is not audited before
Python 3.13 and is replaced while somebody watches. Locks, queues and long computations go unnoticed; `handles_ten_thousand_endpoints`
finds the latter.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import SupportsIndex

_DEEDS = {
    "open": "opens a file",
    "os.system": "runs a command",
    "socket.connect": "connects a blocking socket",
    "socket.getaddrinfo": "resolves a host name",
    "socket.gethostbyname": "resolves a host name",
    "sqlite3.connect": "opens a database",
    "subprocess.Popen": "starts a process",
    "time.sleep": "sleeps",
}
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_ASYNCIO = str(Path(asyncio.__file__).parent)
_OURS = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Blocking:
    """One blocking call: what it does, and where the plugin, or a library of its, makes it."""

    deed: str
    place: str

    def __str__(self) -> str:
        return f"{self.deed} at {self.place}"


@dataclass(slots=True)
class Watch:
    """The blocking calls made while it was active, each place once; calls from other threads do not block the one that matters."""

    found: dict[Blocking, None] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)


_active: ContextVar[Watch | None] = ContextVar("endpick_testing_watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Note blocking calls made in this context, and in tasks begun in it."""
    _install()
    token = _active.set(watch)
    try:
        yield
    finally:
        _active.reset(token)


@cache
def _install() -> None:
    """Once per process: an audit hook cannot be removed again, and without an active watch it does nothing."""
    sys.addaudithook(_hook)
    if sys.version_info < (3, 13):
        _audit_sleep()


def _audit_sleep() -> None:
    slept = time.sleep

    def sleep(seconds: SupportsIndex | float, /) -> None:
        _hook("time.sleep", (seconds,))
        slept(seconds)

    time.sleep = sleep
    for module in tuple(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name in [name for name, value in vars(module).items() if value is slept]:
                setattr(module, name, sleep)


def _hook(event: str, arguments: Sequence[object]) -> None:
    deed = _DEEDS.get(event)
    if deed is None:
        return
    watch = _active.get()
    if watch is None or watch.thread != threading.get_ident():
        return
    if event == "socket.connect" and getattr(arguments[0], "timeout", None) == 0.0:
        return
    frame = _culprit(sys._getframe(1))
    if frame is not None:
        watch.found[Blocking(deed, f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")] = None


def _culprit(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside the standard library; None for imports, and for what asyncio does on somebody's behalf."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(("<frozen importlib", _ASYNCIO)) or file.endswith(("linecache.py", "importlib/__init__.py")):
            return None
        # Packages are installed inside the directory of the standard library.
        standard = file.startswith((_STANDARD_LIBRARY, "<frozen")) and "site-packages" not in file
        if not standard and not file.startswith(_OURS):
            return frame
        frame = frame.f_back
    return None
