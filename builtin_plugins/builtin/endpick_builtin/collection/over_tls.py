"""Connections over TLS to servers, read in turns: one that makes much work of each byte keeps other servers waiting, and nothing else."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

from endpick.api.tls_channel import TlsChannel
from endpick.api.turns import Turns

_TURN_SECONDS = 0.002
"""For all servers, between two looks at everything else."""
_HANDSHAKE_SECONDS = 10.0


class LongHandshakeError(ConnectionError):
    """A server sent more for its handshake than it may."""


class Guest(Protocol):
    """Has what a server sends, once it is decrypted; the methods are those of `asyncio.Protocol`."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None:
        """The handshake is done."""

    def data_received(self, data: bytes, /) -> None:
        """What has arrived."""

    def eof_received(self) -> bool | None:
        """Nothing follows; the answer means nothing, for the connection is closed."""

    def connection_lost(self, exc: Exception | None, /) -> None:
        """The connection is closed."""

    def pause_writing(self) -> None:
        """The server does not take what it is sent."""

    def resume_writing(self) -> None:
        """The server takes what it is sent again."""


def turns_of_tls() -> Turns:
    """The queue in which the connections of one client stand."""
    turns = Turns(_TURN_SECONDS)
    turns.crowded = True
    return turns


async def open_over_tls(
    guest: Guest, context: ssl.SSLContext, turns: Turns, host: str, port: int, most_handshake_bytes: int
) -> asyncio.Transport:
    """Connect, and return what writes to the server when the handshake is done: what `guest` was told of.

    Raises:
        LongHandshakeError: the server sends more for it than `most_handshake_bytes`.
        OSError: the server cannot be reached, its TLS is not what `context` asks for, or the handshake does not come to its end.
    """
    loop = asyncio.get_running_loop()
    opening = _Opening(guest, loop.create_future(), most_handshake_bytes)
    channel = TlsChannel(opening, context, _HANDSHAKE_SECONDS, turns, host, opening.failed, host, most_handshake_bytes)
    try:
        await loop.create_connection(lambda: channel, host, port)
        came_to_nothing = await opening.opened
    except BaseException:
        channel.abort()
        raise
    if came_to_nothing is not None:
        raise channel.problem or came_to_nothing
    return cast("asyncio.Transport", channel)


class _Opening(asyncio.Protocol):
    """Hands on what a channel says, and says what came of the handshake."""

    def __init__(self, guest: Guest, opened: asyncio.Future[ConnectionError | None], most_handshake_bytes: int) -> None:
        self.opened = opened
        """Done with the handshake: why it came to nothing, or None."""
        self._guest = guest
        self._most_handshake_bytes = most_handshake_bytes

    def failed(self, too_long: bool) -> None:
        """See `TlsChannel`."""
        much = f"the handshake of its TLS is longer than {self._most_handshake_bytes // 2**10} KiB"
        self._tell(LongHandshakeError(much) if too_long else ConnectionError("the handshake of its TLS did not come to its end"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._guest.connection_made(transport)
        self._tell(None)

    def data_received(self, data: bytes) -> None:
        self._guest.data_received(data)

    def pause_writing(self) -> None:
        self._guest.pause_writing()

    def resume_writing(self) -> None:
        self._guest.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._guest.eof_received()
        self._guest.connection_lost(exc)

    def _tell(self, came_to_nothing: ConnectionError | None) -> None:
        if not self.opened.done():
            self.opened.set_result(came_to_nothing)
