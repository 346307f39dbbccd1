"""Reviews at intervals, outside the compiled `plugin`: coroutines are not compiled."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

REVIEW_SECONDS: Final = 0.5


class Reviewer(ABC):
    """Base of a plugin that reviews endpoints even while no requests arrive."""

    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def review_when_due(self) -> None:
        """Review the endpoints, unless a request has just done so; called every `REVIEW_SECONDS`."""

    async def start(self) -> None:
        """Schedule the first review on the running event loop."""
        self._review_later()

    async def stop(self) -> None:
        """Cancel the timer, so that no further review runs."""
        if self._timer is not None:
            self._timer.cancel()

    def _review_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(REVIEW_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        try:
            self.review_when_due()
        finally:
            self._review_later()
