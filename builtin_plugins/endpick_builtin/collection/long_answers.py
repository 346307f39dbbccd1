"""Lets answers that take long to read through one after the other, so that many servers that send such cannot hold the process together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LONG_BYTES = 256 * 1024
"""An answer of more waits for its turn; the pages of model servers have a tenth to a third of it."""
_BYTES_PER_SECOND = 64 * 1024 * 1024
"""Rested for what is read of an answer after this: collectors take some 5 ms for a mebibyte, and may take a third of the time."""
_REST = 3.0
"""How many times as long as unpacking took nothing more is unpacked."""


class LongAnswers:
    """A gate of one client of pages. Each that passes has a moment for itself, and after it everything else has longer."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def read(self, body: Callable[[], bytes]) -> bytes:
        """What `body` makes of an answer, once it is its turn; called with answers that are long, or packed.

        Raises:
            What `body` raises.
        """
        async with self._turn:
            loop = asyncio.get_running_loop()
            wait = self._free_at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            began = loop.time()
            size = 0
            try:
                unpacked = body()
                size = len(unpacked)
            finally:
                now = loop.time()
                self._free_at = now + _REST * (now - began) + size / _BYTES_PER_SECOND
            return unpacked
