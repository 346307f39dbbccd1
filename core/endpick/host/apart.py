"""Calls plugins apart from the task that runs.

A plugin that is called by a task of the host finds it with `asyncio.current_task()`, and what it cancels there is the work of others: the
reload, the discovery, the polls of a source. Where no task runs it finds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def apart() -> Iterator[None]:
    """As if no task ran: around plain calls of plugins in coroutines of the host."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    if task is None:
        yield
        return
    loop = task.get_loop()
    asyncio.tasks._leave_task(loop, task)
    try:
        yield
    finally:
        asyncio.tasks._enter_task(loop, task)
