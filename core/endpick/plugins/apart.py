"""Calls plugins apart from the task that runs.

A plugin that is called by a task of the host finds it with `asyncio.current_task()`, and what it cancels there is the work of others: the
reload, the discovery, the polls of a source. Where no task runs it finds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def apart(call: Callable[..., T], *arguments: object) -> T:
    """Call something as if no task ran: for plain calls of plugins from coroutines of the host. Whatever it raises passes."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    if task is None:
        return call(*arguments)
    loop = task.get_loop()
    asyncio.tasks._leave_task(loop, task)
    try:
        return call(*arguments)
    finally:
        asyncio.tasks._enter_task(loop, task)
