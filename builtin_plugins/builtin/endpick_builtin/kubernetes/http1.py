"""Connections for aiohttp over TLS that is read in turns, so that no API server's handshakes or records keep requests waiting."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

import aiohttp

from endpick.api.turns import Turns
from endpick_builtin.collection.over_tls import Guest, open_over_tls

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler


class ConnectorInTurns(aiohttp.BaseConnector):
    """Connects to one server over https, to as many at once as are asked for."""

    def __init__(self, tls: ssl.SSLContext, turns: Turns, connect_seconds: float, most_handshake_bytes: int) -> None:
        """Called on the event loop.

        Args:
            tls: Whom to trust, and what to show.
            turns: In which all connections to the server are read.
            connect_seconds: For a connection and its handshake.
            most_handshake_bytes: That the server may send for one.
        """
        super().__init__(limit=0)
        self._tls = tls
        self._turns = turns
        self._connect_seconds = connect_seconds
        self._most_handshake_bytes = most_handshake_bytes

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> ResponseHandler:
        """What aiohttp has each kind of connector say: how it connects.

        Raises:
            OSError: the server cannot be reached, or its TLS is not what is asked for.
        """
        protocol = self._factory()
        host, port = req.url.raw_host or "", req.url.port or 443
        try:
            async with asyncio.timeout(self._connect_seconds):
                await open_over_tls(cast("Guest", protocol), self._tls, self._turns, host, port, self._most_handshake_bytes)
        except TimeoutError:
            raise ConnectionError(f"no connection within {self._connect_seconds:g} s") from None
        return protocol
