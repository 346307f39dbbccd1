"""Until the transport drops them: names it still imports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


class LaterDecision:
    """Never created."""

    deliver: Any
    cancel: Any


def close_with(task: asyncio.Future[Any], waiting: Awaitable[object]) -> None:
    """Close a coroutine when the task that awaits it ends."""
    if asyncio.iscoroutine(waiting):
        task.add_done_callback(lambda _: waiting.close())


async def at_once(result: object) -> object:
    """The result."""
    return result
