"""Work whose length a configuration decides: done at once, or in turns with everything else of an event loop.

A configuration may have thousands of plugins, and a reload builds them while requests come: 2900 took a fifth of a second at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

from endpick.host.apart import apart

TURN_SECONDS = 0.01
"""For steps that are short each, between two looks at everything else."""

T = TypeVar("T")


def at_once(steps: Generator[None, None, T]) -> T:
    """What steps come to, all of them done now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What steps come to; everything else has its turn between them. What they call of plugins finds no task that it could cancel."""
    while True:
        ends_at = perf_counter() + TURN_SECONDS
        with apart():
            try:
                next(steps)
                while perf_counter() < ends_at:
                    next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)
