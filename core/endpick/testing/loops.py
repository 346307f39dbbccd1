"""Runs coroutines of plugins that may not know when to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")

GRACE_SECONDS = 0.5
"""How long tasks that were left over may take to be cancelled."""


def run(work: Coroutine[object, object, T]) -> T:
    """As `asyncio.run`, which would wait for ever for a task that ignores its cancellation: this gives it up."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # what is left over is reported as findings
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=GRACE_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
