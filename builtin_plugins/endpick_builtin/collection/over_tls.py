"""Connections over TLS to servers, read in turns: one that makes much work of each byte keeps other servers waiting, and nothing else."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES, TlsChannel
from endpick.api.turns import Turns
from endpick_builtin.collection.http_answer import BadAnswerError

_TURN_SECONDS = 0.002
"""For all servers, between two looks at everything else."""
_HANDSHAKE_SECONDS = 10.0


class Reader(Protocol):
    """Has what a server sends, once it is decrypted; the methods are those of `asyncio.Protocol`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""

    def take(self, data: bytes | memoryview) -> None:
        """What has arrived."""

    def eof_received(self) -> None:
        """Nothing follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""


def turns_of_tls() -> Turns:
    """The queue in which the connections of one client stand."""
    turns = Turns(_TURN_SECONDS)
    turns.crowded = True
    return turns


async def open_over_tls(reader: Reader, context: ssl.SSLContext, turns: Turns, host: str, port: int) -> None:
    """Connect, and return when the handshake is done.

    Raises:
        OSError: the server cannot be reached, or its TLS is not what `context` asks for.
        BadAnswerError: the handshake does not come to its end.
    """
    loop = asyncio.get_running_loop()
    guest = _Guest(reader, loop.create_future())
    channel = TlsChannel(guest, context, _HANDSHAKE_SECONDS, turns, host, guest.failed, host)
    try:
        await loop.create_connection(lambda: channel, host, port)
        came_to_nothing = await guest.opened
    except BaseException:
        channel.abort()
        raise
    if came_to_nothing:
        raise channel.problem or BadAnswerError(came_to_nothing)


class _Guest(asyncio.Protocol):
    """Hands on what a channel says."""

    def __init__(self, reader: Reader, opened: asyncio.Future[str]) -> None:
        self.opened = opened
        """Done with the handshake: why it came to nothing, or empty."""
        self._reader = reader

    def failed(self, too_long: bool) -> None:
        """See `TlsChannel`."""
        much = f"the handshake of its TLS is longer than {MOST_HANDSHAKE_BYTES // 2**10} KiB"
        self._tell(much if too_long else "the handshake of its TLS did not come to its end")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reader.connection_made(transport)
        self._tell("")

    def data_received(self, data: bytes) -> None:
        self._reader.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._reader.eof_received()
        self._reader.connection_lost(exc)

    def _tell(self, came_to_nothing: str) -> None:
        if not self.opened.done():
            self.opened.set_result(came_to_nothing)
