"""What a plugin leaves behind: tasks, threads and sockets that were not there before."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

_TURNS = 40
_TURN_SECONDS = 0.005
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Running:
    """What is running and open now."""

    threads: frozenset[threading.Thread]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Running:
        """Look; collects garbage first, because a socket nobody holds is closed only then."""
        gc.collect()
        return cls(frozenset(threading.enumerate()), _sockets())

    def added(self, later: Running) -> tuple[str, ...]:
        """What has come since, described."""
        threads = sorted(thread.name for thread in later.threads - self.threads if thread.is_alive())
        sockets = later.sockets - self.sockets
        return (*(f"the thread '{name}'" for name in threads), *([f"{len(sockets)} open socket(s)"] if sockets else []))


async def tasks_left(work: Callable[[], Awaitable[object]]) -> tuple[str, ...]:
    """Do the work; the tasks that are still running some turns of the event loop after it has ended."""
    before = asyncio.all_tasks()
    await work()
    for _ in range(_TURNS):
        left = asyncio.all_tasks() - before
        if not left:
            return ()
        await asyncio.sleep(_TURN_SECONDS)
    return tuple(sorted(f"the task of `{getattr(task.get_coro(), '__qualname__', task.get_name())}`" for task in left))


def _sockets() -> frozenset[str]:
    """Sockets of this process, where the system tells (Linux)."""
    if not _DESCRIPTORS.is_dir():
        return frozenset()
    found = set()
    for descriptor in _DESCRIPTORS.iterdir():
        try:
            target = descriptor.readlink()
        except OSError:
            continue  # the descriptor of this very listing
        if str(target).startswith("socket:"):
            found.add(str(target))
    return frozenset(found)
