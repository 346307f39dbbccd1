"""Pages over HTTP/1.1, fetched again and again: a request, its answer, and the connection kept for the next one.

What a source needs of HTTP and nothing else: no redirects, no cookies, no proxies. A pool of a hundred endpoints is asked two thousand
times a second, and a client for everything costs three times as much each time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Coroutine
from enum import Enum
from functools import partial
from typing import cast

import httptools

from endpick.api import Limits, Unavailable
from endpick_builtin.collection.connection_room import ROOM, ConnectionRoom
from endpick_builtin.collection.http_answer import Answer, BadAnswerError, StaleError, TooMuchError, too_long
from endpick_builtin.collection.long_answers import LONG_BYTES, LongAnswers
from endpick_builtin.collection.over_tls import LongHandshakeError, open_over_tls, turns_of_tls
from endpick_builtin.collection.page_limits import MANY_CONNECTIONS, SERVICE_SIZE, PageSize
from endpick_builtin.collection.read_budget import BYTES_FOR_EACH, ReadBudget

_READ_BYTES = 256 * 1024
"""At a time: most pages come at once."""
_SHORT_READ_BYTES = 4096
"""Where the budget of this turn is spent; what a short page has, and little of a long one."""
_READ_ON_BYTES = 64 * 1024
"""What to read on is expected to bring."""
_MOST_DIGITS = 16
"""Of a length that is looked at."""


class HttpPages:
    """Fetches pages from many servers. A connection serves one request at a time and is kept; two polls at once take two."""

    def __init__(
        self, tls: ssl.SSLContext | None, accept: str, limits: Limits, longest: PageSize = SERVICE_SIZE, room: ConnectionRoom = ROOM
    ) -> None:
        """For a source that is being started.

        Args:
            tls: For https; None for http.
            accept: Value of the `Accept` header.
            limits: Those of the source, `SOURCE_LIMITS` among them, or `PAGE_LIMITS` for those of `SERVICE_SIZE`.
            longest: How long pages may be.
            room: For the connections of all sources.
        """
        self._limits = limits
        self._longest = longest
        self._room = room
        self._tls = tls
        self._scheme = "http" if tls is None else "https"
        self._headers = f"Accept: {accept}\r\nAccept-Encoding: identity\r\nUser-Agent: endpick\r\n"
        self._idle: dict[str, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._long_answers = LongAnswers(longest.page_bytes)
        self._turns = turns_of_tls()
        self._budget = ReadBudget()
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
                    return await self._read(connection, request, method, authority, shown)
                except StaleError:
                    continue  # the server had closed it, which is no news about the page
                finally:
                    self._long_answers.leave(connection)
        except (OSError, BadAnswerError) as problem:
            if isinstance(problem, TooMuchError):
                self._limits.acted(problem.limit, about=url)
            raise Unavailable(f"{shown}: {_reason(problem)}") from problem

    async def _read(self, connection: _Connection, request: bytes, method: str, authority: str, shown: str) -> bytes:
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            self._idle.setdefault(authority, []).append(connection)
        else:
            connection.abort()
        if answer.status != 200 and not (method == "POST" and 200 < answer.status < 300):
            raise Unavailable(f"{shown} answered {answer.status}")
        return await self._long_answers.read(answer.body, connection) if answer.takes_long else answer.body()

    async def _connect(self, authority: str) -> _Connection:
        host, _, port = authority.rpartition(":")
        loop = asyncio.get_running_loop()
        if not self._room.enter(self):
            raise TooMuchError("no connection is left for it, as the limit of open files allows", MANY_CONNECTIONS)
        try:
            connection = _Connection(loop, self._buffer, self._long_answers, self._budget, self._longest)
            await self._open_to(connection, host.strip("[]"), int(port))
        except BaseException:
            self._room.leave()
            raise
        self._open.add(connection)
        connection.ended.add_done_callback(lambda _: self._drop(connection, authority))
        return connection

    async def _open_to(self, connection: _Connection, host: str, port: int) -> None:
        if self._tls is None:
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
            return
        try:
            await open_over_tls(connection, self._tls, self._turns, host, port, self._longest.handshake_bytes)
        except LongHandshakeError as problem:
            raise TooMuchError(str(problem), self._longest.long_handshake) from problem

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

    def __init__(
        self, loop: asyncio.AbstractEventLoop, buffer: memoryview, long_answers: LongAnswers, budget: ReadBudget, longest: PageSize
    ) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once the connection is closed."""
        self._loop = loop
        self._buffer = buffer
        self._long_answers = long_answers
        self._budget = budget
        self._longest = longest
        self._is_long = False
        """Whether the gate of long answers knows of it."""
        self._state = _State.OPEN
        self._was_kept = False
        self._received = 0
        """Bytes since the request was written, the headers included."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._answer = Answer(self._longest)
        self._parser = httptools.HttpResponseParser(self)

    @property
    def reusable(self) -> bool:
        """Whether another request may be written."""
        return self._state is _State.IDLE

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Write a request; the answer is to come.

        Raises:
            StaleError: the connection was kept, and ended without a byte of an answer.
            BadAnswerError: the answer makes no sense, or there is too much of it.
            OSError: the connection broke.
        """
        self._waiter = waiter = self._loop.create_future()
        if self._state is _State.ENDED or self._transport is None:
            waiter.set_exception(
                StaleError() if self._was_kept or self._received else OSError("the connection ended before the answer did")
            )
            return waiter
        self._was_kept = self._state is _State.IDLE
        self._state = _State.ASKED
        self._received = 0
        self._is_long = False
        self._answer = Answer(self._longest)
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
        return self._buffer[:_SHORT_READ_BYTES] if self._budget.is_spent else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._buffer[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        """What has arrived."""
        if self._state is _State.ASKED:
            self._state = _State.ANSWERING
        elif self._state is not _State.ANSWERING:
            self.abort()  # an answer to nothing: what comes next could be taken for the answer to the next request
            return
        self._received += len(data)
        self._budget.spend(len(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadAnswerError("the server wants to speak another protocol"))
        except (httptools.HttpParserError, BadAnswerError) as problem:
            cause = problem.__context__ if isinstance(problem.__context__, BadAnswerError) else problem
            self._fail(cause if isinstance(cause, BadAnswerError) else BadAnswerError(f"the answer is no HTTP: {problem}"))
        if self._state is _State.ANSWERING:
            longest = self._longest
            if not self._answer.status and self._received > longest.head_bytes:
                much = f"the headers of the answer are longer than {longest.head_bytes // 2**10} KiB"
                self._fail(TooMuchError(much, longest.long_head))
            elif self._received > longest.answer_bytes:
                self._fail(too_long(longest, longest.long_answer))
            elif (self._received > LONG_BYTES or self._answer.is_long) and self._transport is not None:
                self._pause(self._transport)  # also for what is no part of the page: extensions of chunks, trailers
            elif self._budget.is_spent and self._transport is not None:
                self._transport.pause_reading()
                self._budget.join(_READ_ON_BYTES, self.go_on)

    def _pause(self, transport: asyncio.Transport) -> None:
        """Let everything else have its turn before the next part of a long answer: uvloop would read on for as long as there is more."""
        transport.pause_reading()
        if self._is_long:
            self._loop.call_soon(self.go_on)
            return
        self._is_long = True
        if self._long_answers.enter(self):
            self._loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """See `LongAnswer`."""
        if self._state is _State.ANSWERING and self._transport is not None:
            self._transport.resume_reading()

    def give_up(self) -> None:
        """See `LongAnswer`."""
        self._fail(BadAnswerError("the answer is long, comes slowly, and others are waiting"))

    def eof_received(self) -> None:
        if self._state is _State.ANSWERING and self._answer.status and not self._answer.framed:
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _State.ASKED and self._was_kept:
            self._fail(StaleError())
        elif exc is not None:
            self._fail(exc if isinstance(exc, OSError) else OSError(str(exc)))
        else:
            self._fail(OSError("the connection ended before the answer did"))
        if not self.ended.done():  # cancelled with a task that was waiting for it
            self.ended.set_result(None)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._state is not _State.ANSWERING:
            raise BadAnswerError("more was answered than was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        answer = self._answer
        answer.headers += 1
        if answer.headers > self._longest.headers:
            raise TooMuchError(f"the answer has more than {self._longest.headers} headers", self._longest.many_headers)
        name = name.lower()
        if name == b"content-length":
            answer.framed = True
            answer.announced = int(value) if value.isdigit() and len(value) < _MOST_DIGITS else 0
            if value.isdigit() and (len(value) >= _MOST_DIGITS or answer.announced > self._longest.page_bytes):
                raise too_long(self._longest, self._longest.long_page)
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
            self._answer = Answer(self._longest)
            return
        self._complete(keep=self._parser.should_keep_alive())

    def _complete(self, *, keep: bool = False) -> None:
        self._state = _State.IDLE if keep and self._state is _State.ANSWERING else _State.ENDED
        # The answer is its reader's now: a connection that is kept would keep megabytes.
        answer, self._answer = self._answer, Answer(self._longest)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._budget.join(BYTES_FOR_EACH + answer.size, partial(_hand_on, answer, waiter))

    def _fail(self, problem: Exception) -> None:
        self._state = _State.ENDED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(problem)
        if self._transport is not None:
            self._transport.abort()


def _hand_on(answer: Answer, waiter: asyncio.Future[Answer]) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _reason(problem: OSError | BadAnswerError) -> str:
    """What the system says of a connection that did not come about, rather than what the event loop made of it."""
    if isinstance(problem, BadAnswerError | ssl.SSLError | socket.gaierror) or not problem.errno:
        return str(getattr(problem, "strerror", None) or problem)
    return os.strerror(problem.errno).lower()
