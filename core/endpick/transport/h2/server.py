"""The HTTP/2 listener."""

from __future__ import annotations

from endpick.transport.counters import TransportCounters
from endpick.transport.server import ListenSettings, Methods

__all__ = ["H2Server"]


class H2Server:
    """A `Server` on asyncio protocols."""

    def __init__(self, settings: ListenSettings, methods: Methods) -> None:
        self.counters = TransportCounters()
        self._settings = settings
        self._methods = methods

    async def start(self) -> int:
        """Bind and serve; see `Server.start`."""
        raise NotImplementedError

    async def drain(self, grace_seconds: float) -> None:
        """See `Server.drain`."""

    async def stop(self) -> None:
        """See `Server.stop`."""
