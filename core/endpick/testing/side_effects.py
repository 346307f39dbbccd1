"""Detects side effects of plugin code: blocking calls, and tasks, threads and sockets left open."""

from __future__ import annotations

import asyncio
import gc
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import SupportsIndex

_BLOCKING_CALLS = {
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
    """A blocking call, and its place in the plugin."""

    action: str
    place: str

    def __str__(self) -> str:
        return f"{self.action} at {self.place}"


@dataclass(slots=True)
class Watch:
    """The blocking calls of one thread, each place once."""

    found: dict[Blocking, None] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)


_active: ContextVar[Watch | None] = ContextVar("endpick_testing_watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Record blocking calls in this context and in tasks that it creates."""
    _install()
    token = _active.set(watch)
    try:
        yield
    finally:
        _active.reset(token)


@cache
def _install() -> None:
    """Installed once per process, because an audit hook cannot be removed."""
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
    action = _BLOCKING_CALLS.get(event)
    if action is None:
        return
    watch = _active.get()
    if watch is None or watch.thread != threading.get_ident():
        return
    if event == "socket.connect" and getattr(arguments[0], "timeout", None) == 0.0:
        return
    frame = _plugin_frame(sys._getframe(1))
    if frame is not None:
        watch.found[Blocking(action, f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")] = None


def _plugin_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside the standard library; None for imports and asyncio's own calls."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(("<frozen importlib", _ASYNCIO)) or file.endswith(("linecache.py", "importlib/__init__.py")):
            return None
        # site-packages is inside the standard library's directory
        standard = file.startswith((_STANDARD_LIBRARY, "<frozen")) and "site-packages" not in file
        if not standard and not file.startswith(_OURS):
            return frame
        frame = frame.f_back
    return None


_POLLS = 40
_POLL_SECONDS = 0.005
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Running:
    """A snapshot of the open threads and sockets of the process."""

    threads: frozenset[threading.Thread]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Running:
        """Take a snapshot. Collects garbage first, because unreferenced sockets close only then."""
        gc.collect()
        return cls(frozenset(threading.enumerate()), _sockets())

    def added(self, later: Running) -> tuple[str, ...]:
        """Describe the threads and sockets of `later` that are not in this snapshot."""
        threads = sorted(thread.name for thread in later.threads - self.threads if thread.is_alive())
        sockets = later.sockets - self.sockets
        return (*(f"the thread '{name}'" for name in threads), *([f"{len(sockets)} open socket(s)"] if sockets else []))


async def tasks_left(work: Callable[[], Awaitable[object]]) -> tuple[str, ...]:
    """Await `work`; returns descriptions of the tasks that still run a moment later."""
    before = asyncio.all_tasks()
    await work()
    for _ in range(_POLLS):
        left = asyncio.all_tasks() - before
        if not left:
            return ()
        await asyncio.sleep(_POLL_SECONDS)
    return tuple(sorted(f"the task of `{getattr(task.get_coro(), '__qualname__', task.get_name())}`" for task in left))


def _sockets() -> frozenset[str]:
    if not _DESCRIPTORS.is_dir():
        return frozenset()
    found = set()
    for descriptor in _DESCRIPTORS.iterdir():
        try:
            target = descriptor.readlink()
        except OSError:
            continue  # the descriptor of this listing
        if str(target).startswith("socket:"):
            found.add(str(target))
    return frozenset(found)
