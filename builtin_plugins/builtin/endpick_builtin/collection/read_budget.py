"""How much of many answers is received and read between two looks at everything else; the rest waits for its turn.

Hundreds of servers may answer at one moment. To receive an answer of 250 KB and to read it takes a third of a millisecond, which is
nothing; three hundred of them would have every request wait for a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BYTES_PER_TURN = 1024 * 1024
"""Of what is received and of what is handed on to be read, added up: collectors take some 5 ms for a mebibyte."""
BYTES_FOR_EACH = 4096
"""What an answer costs beside its length, in bytes that would cost as much."""


class ReadBudget:
    """The budget of one client of pages, which is renewed with each turn of the event loop."""

    def __init__(self) -> None:
        self._left = BYTES_PER_TURN
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._will_renew = False
        """True wherever something waits."""

    @property
    def is_spent(self) -> bool:
        """Whether what is not needed at once had better wait for the next turn."""
        return self._left <= 0

    def spend(self, size: int) -> None:
        """So many bytes were received. Call it on the running event loop."""
        self._left -= size
        if not self._will_renew:
            self._will_renew = True
            asyncio.get_running_loop().call_soon(self._renew)

    def join(self, size: int, act: Callable[[], None]) -> None:
        """Have `act` called: now if the budget allows it and nothing waits, else in its turn. It will take as long as `size` bytes do."""
        if self._waiting or self.is_spent:
            self._waiting.append((size, act))
        else:
            self.spend(size)
            act()

    def _renew(self) -> None:
        self._left = BYTES_PER_TURN
        self._will_renew = False
        while self._waiting and self._left > 0:
            size, act = self._waiting.popleft()
            self.spend(size)
            act()
