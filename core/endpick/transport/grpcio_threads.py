"""Which thread goes first: the event loop goes before the threads in which grpcio reads and writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["go_first"]

_TASKS: Final = Path("/proc/self/task")
_OF_GRPCIO: Final = ("event_engine", "lifeguard")
"""How Linux calls them; those that they start are as they are."""
_NICE: Final = 10


def go_first() -> None:
    """Lower the priority of grpcio's threads; nothing where the system does not tell of them.

    In a flood they have more to read than two processors can, and there are more of them than of the event loop, which then gets a
    fraction of a processor and falls behind further. Read last, a flood waits in the sockets of those who send it.
    """
    try:
        for task in _TASKS.iterdir():
            if (task / "comm").read_text(encoding="utf-8", errors="replace").strip() in _OF_GRPCIO:
                os.setpriority(os.PRIO_PROCESS, int(task.name), _NICE)
    except OSError:  # no such folder, or a thread that has just ended
        return
