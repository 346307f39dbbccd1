"""Asks over HTTP/2, a connection for each question: there a server says that it is about to end, and answers whether it is there.

HTTP/1.1 has no word for either: a kube-apiserver that was told to end closes its port and leaves the watches that there are open, and
silent, for a minute, which behind a load balancer looks like a quiet cluster. Over HTTP/2 it sends GOAWAY at that moment, on the watch's
own connection, and PING (RFC 9113, 6.7) finds out at no cost whether the machine behind a connection is still there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import SplitResult

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from jh2.exceptions import ProtocolError
from jh2.hpack.exceptions import HPACKError
from jh2.hpack.hpack import Decoder

from endpick.api.turns import Turns
from endpick_builtin.collection.over_tls import open_over_tls
from endpick_builtin.kubernetes.pages import Pace

_READ_BYTES = 4096
"""Read at once: 455 frames that hold nothing, which take 5 ms."""
_MOST_BLOCK_BYTES = 16 * 1024
"""Of the header fields of an answer, which are some hundred; a frame holds no more."""
PING = b"endpick\0"


class NoHttp2Error(Exception):
    """The server, or what stands before it, speaks HTTP/1.1 only."""


class LostError(ConnectionError):
    """The answer will not go on."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to connect to, and for how long a connection is believed.

    Attributes:
        url: Of the server.
        tls: Which offers HTTP/2.
        connect_seconds: For the connection.
        ping_seconds: After so long without a word the server is asked whether it is there, and after as long again it is given up.
        most_handshake_bytes: That the server may send for a handshake of TLS.
    """

    url: SplitResult
    tls: ssl.SSLContext
    connect_seconds: float
    ping_seconds: float
    most_handshake_bytes: int


class _PatientDecoder(Decoder):  # type: ignore[misc]  # jh2 says nothing of types
    """Header fields, in Python: the decoder in Rust that jh2 takes by default prints a stack and panics where a block breaks off."""

    def decode(self, data: bytes, raw: bool = False) -> object:
        """See jh2, which calls this with each block, and knows the errors of the other decoder.

        Raises:
            ProtocolError: the block is none, or longer than any that is sent in earnest.
        """
        if len(data) > _MOST_BLOCK_BYTES:
            raise ProtocolError(f"{len(data)} bytes of header fields")
        try:
            return super().decode(data, raw)
        except HPACKError as problem:
            raise ProtocolError("header fields that break the rules of HPACK") from problem


def _connection() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=False))
    connection.decoder = _PatientDecoder(connection.DEFAULT_MAX_HEADER_LIST_SIZE)
    connection.decoder.max_allowed_table_size = connection.local_settings.header_table_size
    return connection


class Exchange:
    """One request on a connection of its own, and what comes of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ping_seconds: float, pace: Pace) -> None:
        self.headers: dict[str, str] = {}
        """Of the answer, once `begin` has returned; `:status` is one of them."""
        self._reader, self._writer = reader, writer
        self._ping_seconds = ping_seconds
        self._connection = _connection()
        self._pace = pace
        self._early: list[bytes] = []
        self._ended = self._leaving = False

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Ask, and wait for the head of the answer.

        Raises:
            LostError: there is none.
        """
        self._connection.initiate_connection()
        self._connection.send_headers(1, list(headers.items()), end_stream=True)
        await self._flush()
        while not self.headers:
            self._early += await self._next()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it comes.

        Raises:
            LostError: the connection broke, the server is about to end, or it no longer answers.
        """
        for chunk in self._early:
            yield chunk
        while not self._ended:
            for chunk in await self._next():
                yield chunk

    async def _next(self) -> list[bytes]:
        """What of the body came at once; what came before a farewell counts."""
        if self._leaving:
            raise LostError("the server is about to end (GOAWAY)")
        events = await self._events()
        self._leaving = any(isinstance(event, ConnectionTerminated) for event in events)
        chunks: list[bytes] = []
        for event in events:
            if isinstance(event, ResponseReceived):
                self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers or ()}
            elif isinstance(event, DataReceived):
                chunks.append(bytes(event.data or b""))
                if not self._leaving:
                    self._connection.acknowledge_received_data(event.flow_controlled_length or 0, 1)
            elif isinstance(event, StreamReset):
                raise LostError(f"the server has reset the request (HTTP/2 error {event.error_code})")
            elif isinstance(event, StreamEnded):
                self._ended = True
        await self._flush()
        return chunks

    async def _events(self) -> list[Event]:
        data = await self._read()
        if not data:
            raise LostError("the connection was closed")
        began = perf_counter()
        try:
            events = list(self._connection.receive_data(data))
        except ProtocolError as problem:
            raise LostError(f"what the server sent is not HTTP/2: {problem}") from problem
        await self._pace.rest(began)
        return events

    async def _read(self) -> bytes:
        """What came next; a server that has nothing to say is asked whether it is there."""
        for asks in (True, False):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ping_seconds):
                    return await self._reader.read(_READ_BYTES)
            if asks:
                self._connection.ping(PING)
                await self._flush()
        raise LostError(f"the server has not answered a PING for {self._ping_seconds:g} s")

    async def _flush(self) -> None:
        """Send what there is to say, and wait until it is taken. That the connection is gone is told once all that came was read."""
        self._writer.write(self._connection.data_to_send())
        try:
            async with asyncio.timeout(self._ping_seconds):
                with suppress(ConnectionError):
                    await self._writer.drain()
        except TimeoutError:
            raise LostError(f"the server has taken nothing for {self._ping_seconds:g} s") from None


async def _opened(destination: Destination, turns: Turns) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    url = destination.url
    host, port = url.hostname or "", url.port or 443
    channel = await open_over_tls(protocol, destination.tls, turns, host, port, destination.most_handshake_bytes)
    return reader, asyncio.StreamWriter(channel, protocol, reader, loop)


@asynccontextmanager
async def asked(destination: Destination, turns: Turns, pace: Pace, target: str, headers: Mapping[str, str]) -> AsyncIterator[Exchange]:
    """Ask with GET for a path and its query, on a connection that is cut afterwards.

    Args:
        destination: Whom.
        turns: In which all such connections are decrypted.
        pace: At which all of them are read.
        target: Path and query.
        headers: Beside those that HTTP/2 has for them.

    Raises:
        NoHttp2Error: the server does not speak it.
        OSError: it cannot be reached, or breaks off.
    """
    url = destination.url
    async with asyncio.timeout(destination.connect_seconds):
        reader, writer = await _opened(destination, turns)
    try:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            raise NoHttp2Error
        exchange = Exchange(reader, writer, destination.ping_seconds, pace)
        pseudo = {":method": "GET", ":scheme": "https", ":authority": url.netloc, ":path": f"{url.path}{target}"}
        await exchange.begin({**pseudo, **{name.lower(): value for name, value in headers.items()}})
        yield exchange
    finally:
        writer.transport.abort()
