"""Pages over HTTP/1.1, fetched again and again: a request, its answer, and the connection kept for the next one.

What a source needs of HTTP and nothing else: no redirects, no cookies, no proxies. A pool of a hundred endpoints is asked two thousand
times a second, and a client for everything costs three times as much each time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import zlib
from collections.abc import Coroutine
from enum import Enum
from typing import cast

import httptools

from endpick.api import Limit, Limits, Unavailable
from endpick_builtin.collection.connection_room import ROOM, ConnectionRoom
from endpick_builtin.collection.long_answers import LONG_BYTES, LongAnswers
from endpick_builtin.collection.page_limits import (
    LONG_ANSWER,
    LONG_HEAD,
    LONG_PAGE,
    MANY_CHUNKS,
    MANY_CONNECTIONS,
    MANY_HEADERS,
    MAX_ANSWER_BYTES,
    MAX_CHUNKS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PAGE_BYTES,
)

_READ_BYTES = 256 * 1024
"""At a time: most pages come at once."""


class HttpPages:
    """Fetches pages from many servers. A connection serves one request at a time and is kept; two polls at once take two."""

    def __init__(self, tls: ssl.SSLContext | None, accept: str, limits: Limits, room: ConnectionRoom = ROOM) -> None:
        """For a source that is being started.

        Args:
            tls: For https; None for http.
            accept: Value of the `Accept` header.
            limits: Those of the source, `PAGE_LIMITS` among them.
            room: For the connections of all sources.
        """
        self._limits = limits
        self._room = room
        self._tls = tls
        self._scheme = "http" if tls is None else "https"
        self._headers = f"Accept: {accept}\r\nAccept-Encoding: identity\r\nUser-Agent: endpick\r\n"
        self._idle: dict[str, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._long_answers = LongAnswers()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        """Into which each connection reads in its turn: what was read is taken out before another one reads."""

    async def close(self) -> None:
        """Close all connections."""
        self._idle.clear()
        while self._open:
            connection = next(iter(self._open))
            connection.abort()
            self._release(connection)
            await connection.ended
        self._room.forget(self)

    def forget(self, authority: str) -> None:
        """Close what is kept for a server that is asked no more."""
        for connection in self._idle.pop(authority, ()):
            connection.abort()

    def close_idle(self) -> bool:
        """See `Keeper`: that to the server whose connections have been kept for longest."""
        for authority, connections in self._idle.items():
            if connections:
                connection = connections.pop(0)
                if not connections:
                    del self._idle[authority]  # when one is kept again, it is the newest
                connection.abort()
                self._release(connection)
                return True
        return False

    def get(self, authority: str, path: str) -> Coroutine[object, object, bytes]:
        """The body of one page.

        Args:
            authority: `host:port`, an IPv6 address in brackets.
            path: From the root of the server, with its query.

        Raises:
            Unavailable: it cannot be had; the message names the URL and the reason.
        """
        return self._fetch("GET", authority, path, "", b"")

    async def post(self, authority: str, path: str, body: bytes, headers: str = "") -> bytes:
        """The answer to a JSON body; arguments and what it raises are those of `get`.

        Args:
            authority: See `get`.
            path: See `get`.
            body: JSON.
            headers: Further lines of the head, each with its line end.

        Raises:
            Unavailable: as `get`, and for an answer that is no success (2xx).
        """
        return await self._fetch(
            "POST", authority, path, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}", body
        )

    async def _fetch(self, method: str, authority: str, path: str, headers: str, body: bytes) -> bytes:
        url = f"{self._scheme}://{authority}{path.partition('?')[0]}"  # in a query there may be a key
        shown = f"{method} {url}"
        request = f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{self._headers}{headers}\r\n".encode() + body
        try:
            while True:
                idle = self._idle.get(authority)
                connection = idle.pop() if idle else await self._connect(authority)
                try:
                    answer = await connection.ask(request)
                except _StaleError:
                    continue  # the server had closed it, which is no news about the page
                except BaseException:
                    connection.abort()
                    raise
                break
            if connection.reusable:
                self._idle.setdefault(authority, []).append(connection)
            else:
                connection.abort()
            if answer.status != 200 and not (method == "POST" and 200 < answer.status < 300):
                raise Unavailable(f"{shown} answered {answer.status}")
            return await self._long_answers.read(answer.body) if answer.takes_long else answer.body()
        except (OSError, _BadAnswerError) as problem:
            if isinstance(problem, _TooMuchError):
                self._limits.acted(problem.limit, about=url)
            raise Unavailable(f"{shown}: {_reason(problem)}") from problem

    async def _connect(self, authority: str) -> _Connection:
        host, _, port = authority.rpartition(":")
        loop = asyncio.get_running_loop()
        if not self._room.enter(self):
            raise _TooMuchError("no connection is left for it, as the limit of open files allows", MANY_CONNECTIONS)
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._buffer), host.strip("[]"), int(port), ssl=self._tls
            )
        except BaseException:
            self._room.leave()
            raise
        self._open.add(connection)
        connection.ended.add_done_callback(lambda _: self._drop(connection, authority))
        return connection

    def _drop(self, connection: _Connection, authority: str) -> None:
        self._release(connection)
        idle = self._idle.get(authority, [])
        if connection in idle:
            idle.remove(connection)

    def _release(self, connection: _Connection) -> None:
        """Its place is free; idempotent."""
        if connection in self._open:
            self._open.discard(connection)
            self._room.leave()


class _BadAnswerError(Exception):
    """The server does not answer as a server of pages does; the message says how."""


class _TooMuchError(_BadAnswerError):
    """There is more of the answer than a limit allows."""

    def __init__(self, message: str, limit: Limit) -> None:
        super().__init__(message)
        self.limit = limit


class _StaleError(Exception):
    """A connection that was kept had ended before the request reached the server."""


class _Answer:
    """One answer, as far as it came."""

    __slots__ = ("_chunks", "encoding", "framed", "headers", "size", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the headers are complete."""
        self.headers = 0
        self.framed = False
        """Whether the answer says itself where it ends; else it ends with the connection."""
        self.encoding = b""
        self.size = 0
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > MAX_PAGE_BYTES:
            raise _too_long(LONG_PAGE)
        if len(self._chunks) >= MAX_CHUNKS:
            raise _TooMuchError(f"the answer comes in more than {MAX_CHUNKS} chunks", MANY_CHUNKS)
        self._chunks.append(chunk)

    @property
    def takes_long(self) -> bool:
        """Whether to unpack and read it may take long."""
        return self.size > LONG_BYTES or self.encoding not in (b"", b"identity")

    def body(self) -> bytes:
        """Raises `_BadAnswerError`: it is compressed, and cannot be unpacked within the limit."""
        whole = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        if self.encoding in (b"", b"identity"):
            return whole
        if self.encoding not in (b"gzip", b"x-gzip", b"deflate"):
            raise _BadAnswerError(f"the answer is encoded with {self.encoding.decode('latin-1')!r}, which was not asked for")
        unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            unpacked = unpacker.decompress(whole, MAX_PAGE_BYTES + 1)
        except zlib.error as problem:
            raise _BadAnswerError(f"the compressed answer cannot be unpacked: {problem}") from problem
        if len(unpacked) > MAX_PAGE_BYTES:
            raise _too_long(LONG_PAGE)
        if not unpacker.eof:
            raise _BadAnswerError("the compressed answer cannot be unpacked: it is cut short")
        return unpacked


_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""zlib's `wbits` for data that says itself which of the two it is."""


def _too_long(limit: Limit) -> _TooMuchError:
    return _TooMuchError(f"the page is longer than {MAX_PAGE_BYTES // 2**20} MiB", limit)


class _State(Enum):
    """Where a connection stands. OPEN and IDLE may go to ASKED; every state may go to ENDED."""

    OPEN = 0
    """Connected, and nothing was asked yet."""
    ASKED = 1
    """A request was written; not a byte has come back."""
    ANSWERING = 2
    """The answer arrives."""
    IDLE = 3
    """An answer is complete, and the connection can take another request."""
    ENDED = 4
    """It can take no more."""


class _Connection(asyncio.BufferedProtocol):
    """One connection to one server, which reads one answer after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer: memoryview) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once the connection is closed."""
        self._loop = loop
        self._buffer = buffer
        self._state = _State.OPEN
        self._was_kept = False
        self._received = 0
        """Bytes since the request was written, the headers included."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[_Answer] | None = None
        self._answer = _Answer()
        self._parser = httptools.HttpResponseParser(self)

    @property
    def reusable(self) -> bool:
        """Whether another request may be written."""
        return self._state is _State.IDLE

    def ask(self, request: bytes) -> asyncio.Future[_Answer]:
        """Write a request; the answer is to come.

        Raises:
            _StaleError: the connection was kept, and ended without a byte of an answer.
            _BadAnswerError: the answer makes no sense, or there is too much of it.
            OSError: the connection broke.
        """
        self._waiter = waiter = self._loop.create_future()
        if self._state is _State.ENDED or self._transport is None:
            waiter.set_exception(
                _StaleError() if self._was_kept or self._received else OSError("the connection ended before the answer did")
            )
            return waiter
        self._was_kept = self._state is _State.IDLE
        self._state = _State.ASKED
        self._received = 0
        self._answer = _Answer()
        self._transport.write(request)
        return waiter

    def abort(self) -> None:
        """Drop the connection at once."""
        self._state = _State.ENDED
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _State.ASKED:
            self._state = _State.ANSWERING
        elif self._state is not _State.ANSWERING:
            self.abort()  # an answer to nothing: what comes next could be taken for the answer to the next request
            return
        self._received += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            self._fail(_BadAnswerError("the server wants to speak another protocol"))
        except (httptools.HttpParserError, _BadAnswerError) as problem:
            cause = problem.__context__ if isinstance(problem.__context__, _BadAnswerError) else problem
            self._fail(cause if isinstance(cause, _BadAnswerError) else _BadAnswerError(f"the answer is no HTTP: {problem}"))
        if self._state is _State.ANSWERING:
            if not self._answer.status and self._received > MAX_HEAD_BYTES:
                self._fail(_TooMuchError(f"the headers of the answer are longer than {MAX_HEAD_BYTES // 2**10} KiB", LONG_HEAD))
            elif self._received > MAX_ANSWER_BYTES:
                self._fail(_too_long(LONG_ANSWER))

    def eof_received(self) -> None:
        if self._state is _State.ANSWERING and self._answer.status and not self._answer.framed:
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _State.ASKED and self._was_kept:
            self._fail(_StaleError())
        elif exc is not None:
            self._fail(exc if isinstance(exc, OSError) else OSError(str(exc)))
        else:
            self._fail(OSError("the connection ended before the answer did"))
        if not self.ended.done():  # cancelled with a task that was waiting for it
            self.ended.set_result(None)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._state is not _State.ANSWERING:
            raise _BadAnswerError("more was answered than was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        answer = self._answer
        answer.headers += 1
        if answer.headers > MAX_HEADERS:
            raise _TooMuchError(f"the answer has more than {MAX_HEADERS} headers", MANY_HEADERS)
        name = name.lower()
        if name == b"content-length":
            answer.framed = True
            if value.isdigit() and int(value) > MAX_PAGE_BYTES:
                raise _too_long(LONG_PAGE)
        elif name == b"transfer-encoding":
            answer.framed = True
        elif name == b"content-encoding":
            answer.encoding = value.strip().lower()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, chunk: bytes) -> None:
        """Called by the parser."""
        self._answer.add(chunk)

    def on_message_complete(self) -> None:
        """Called by the parser; also after an interim answer (1xx), which the real one follows."""
        if self._answer.status < 200:
            self._answer = _Answer()
            return
        self._complete(keep=self._parser.should_keep_alive())

    def _complete(self, *, keep: bool = False) -> None:
        self._state = _State.IDLE if keep and self._state is _State.ANSWERING else _State.ENDED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._answer)

    def _fail(self, problem: Exception) -> None:
        self._state = _State.ENDED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(problem)
        if self._transport is not None:
            self._transport.abort()


def _reason(problem: OSError | _BadAnswerError) -> str:
    """What the system says of a connection that did not come about, rather than what the event loop made of it."""
    if isinstance(problem, _BadAnswerError | ssl.SSLError | socket.gaierror) or not problem.errno:
        return str(getattr(problem, "strerror", None) or problem)
    return os.strerror(problem.errno).lower()
