"""One connection to the admin port: what scrapers and probes use of HTTP/1.1, and nothing else.

A web framework would be a quarter of what endpick imports at its start, and an eighth of its memory.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

from endpick.host.failures import AWAIT_FAILURES, is_the_hosts
from endpick.serve.admin_limits import AdminCounters, AdminLimits

_log = logging.getLogger("endpick.serve")

_COMPRESSED_AT_ONCE_BYTES = 16 * 1024
"""A longer page is compressed in another thread, so that no request waits for it."""
_COMPRESSION_LEVEL = 6
_PIECE_BYTES = 64 * 1024
"""Of a page, written at once."""
_MOST_WAITING = 16
"""Requests of one connection that wait for the answer to the one before; scrapers and probes send none before they have it."""
_TEXT = "text/plain; charset=utf-8"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Page:
    """What one path answers; those who share it share its compressed form."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    _compressing: asyncio.Task[bytes] | None = field(default=None, init=False, repr=False)

    async def compressed(self) -> bytes:
        """The body as gzip, made once."""
        if self._compressing is None:
            self._compressing = asyncio.ensure_future(_compressed(self.body))
        return await asyncio.shield(self._compressing)


Pages = dict[str, Callable[[], Awaitable[Page]]]
"""Each path, and what makes its page."""


class HeldPages:
    """The pages that are being sent: a client that takes its own slowly keeps it in memory, and the next one asks for another."""

    def __init__(self, most_bytes: int) -> None:
        """Where all are more than `most_bytes`, those who have the oldest are hung up on; the newest may be as long as it is."""
        self._most_bytes = most_bytes
        self._held: dict[AdminConnection, bytes] = {}
        """What each connection is being sent, the oldest first."""

    def hold(self, connection: AdminConnection, body: bytes) -> int:
        """A connection begins to send this; how many others are hung up on for it."""
        self._held[connection] = body
        evicted = 0
        while self._bytes() > self._most_bytes:
            oldest = next(iter(self._held.values()))
            if oldest is body:
                break
            for each in [each for each, held in self._held.items() if held is oldest]:
                evicted += 1
                self.let_go(each)
                each.evict()
        return evicted

    def let_go(self, connection: AdminConnection) -> None:
        """All of it is sent, or is not wanted any more."""
        self._held.pop(connection, None)

    def _bytes(self) -> int:
        return sum(map(len, {id(body): body for body in self._held.values()}.values()))


class _TooManyRequestsError(Exception):
    """A connection asks for more before it has what it asked for; the parser hands it on as an error of its own."""


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, as far as it matters here."""

    method: bytes
    path: str
    takes_gzip: bool
    keeps_alive: bool


class BusySeats:
    """How many connections keep their seats while they are answered; those of others are for probes, however many ask for pages."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> bool:
        """Whether there was one left; it is to be given back."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        """The answer is sent, or is not wanted any more."""
        self._left += 1


class AdminConnection(asyncio.Protocol):
    """Answers one request after the other, and closes when one takes too long, or says too much."""

    def __init__(
        self,
        pages: Pages,
        limits: AdminLimits,
        counters: AdminCounters,
        busy: BusySeats,
        held: HeldPages,
        opened: Callable[[AdminConnection], None],
        closed: Callable[[AdminConnection], None],
    ) -> None:
        """`opened` and `closed` are called once each, when the connection is there and when it is gone."""
        self._pages = pages
        self._limits = limits
        self._counters = counters
        self._busy = busy
        self._held = held
        self._keeps_seat = False
        """Whether it has one of the busy seats."""
        self._on_opened = opened
        self._on_closed = closed
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._accepts = b""
        self._asked_bytes = 0
        """Since the last answer."""
        self._asking_since: float | None = None
        """When the first byte of a request came that is not complete."""
        self._idle_since = time.monotonic()
        self._served = False
        self._requests: deque[_Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        """Whether the client takes what is written."""
        self._taken.set()

    async def end(self) -> None:
        """Close, and wait until it is closed."""
        if self._answering is not None:
            self._answering.cancel()
        self._transport.abort()
        await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._on_opened(self)

    def data_received(self, data: bytes) -> None:
        """A piece of a request, or several."""
        self._asked_bytes += len(data)
        if self._asked_bytes > self._limits.max_request_bytes:
            self._counters.requests_too_large += 1
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        if self._asking_since is None:
            self._asking_since = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # not taken up: the request is answered as any other
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
        # The parser refers to this object, and what is cancelled to its page: both would wait for the garbage collector.
        del self._parser
        self._on_closed(self)
        self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """The client takes what it is sent again."""
        self._taken.set()

    def idle_since(self) -> float | None:
        """See `Guest.idle_since`. A client that does not take its answer, or asks for more before it has it, is idle, too."""
        return None if self._keeps_seat and self._taken.is_set() else self._idle_since

    def served(self) -> bool:
        """See `Guest.served`."""
        return self._served

    def evict(self) -> None:
        """See `Guest.evict`."""
        self._transport.abort()

    def tick(self, now: float) -> None:
        """About once a second: close the connection if it has taken too long."""
        if self._answering is not None and self._taken.is_set():
            return
        if self._asking_since is not None and now - self._asking_since > self._limits.header_seconds:
            self._counters.header_timeouts += 1
            self._transport.abort()
        elif now - self._idle_since > self._limits.idle_seconds:
            self._counters.idle_connections += 1
            self._transport.abort()

    def on_message_begin(self) -> None:
        """For the parser."""
        self._url = self._accepts = b""

    def on_url(self, url: bytes) -> None:
        """For the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """For the parser."""
        if name.lower() == b"accept-encoding":
            self._accepts += b"," + value

    def on_message_complete(self) -> None:
        """For the parser; a task answers, because a page may have to be waited for."""
        if len(self._requests) >= _MOST_WAITING:
            self._counters.requests_too_large += 1
            raise _TooManyRequestsError
        self._asking_since = None
        path = self._url.partition(b"?")[0].decode("latin-1")
        request = _Request(self._parser.get_method(), path, _takes_gzip(self._accepts), self._parser.should_keep_alive())
        self._requests.append(request)
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        while self._requests and not self._transport.is_closing():
            request = self._requests.popleft()
            self._keeps_seat = not self._requests and self._busy.take()
            try:
                await self._answer(request)
            finally:
                if self._keeps_seat:
                    self._keeps_seat = False
                    self._busy.give_back()
            if self._requests:
                await asyncio.sleep(0)  # however many are waiting here, everything else has a turn
        self._answering = None
        self._asked_bytes = 0

    async def _answer(self, request: _Request) -> None:
        page = await self._page(request)
        body, compressed = page.body, request.takes_gzip and page.status is HTTPStatus.OK
        if compressed:
            body = await page.compressed()
        head = _head(page, len(body), compressed, request.keeps_alive)
        if request.method == b"HEAD":
            body = b""
        self._counters.pages_too_slow += self._held.hold(self, page.body)
        try:
            await self._write(head, body)
        finally:
            self._held.let_go(self)
        self._served = True
        if not request.keeps_alive:
            self._transport.close()
        await self._taken.wait()

    async def _write(self, head: bytes, body: bytes) -> None:
        """Send a page as the client takes it: what a slow client has not taken is not copied, and no request waits while thirty get one."""
        self._transport.write(head + body[:_PIECE_BYTES])
        self._idle_since = time.monotonic()
        for start in range(_PIECE_BYTES, len(body), _PIECE_BYTES):
            await asyncio.sleep(0)
            await self._taken.wait()
            if self._transport.is_closing():
                return
            self._transport.write(body[start : start + _PIECE_BYTES])
            self._idle_since = time.monotonic()

    async def _page(self, request: _Request) -> Page:
        make = self._pages.get(request.path)
        if make is None:
            return _status(HTTPStatus.NOT_FOUND)
        if request.method not in (b"GET", b"HEAD"):
            return _status(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await make()
        except AWAIT_FAILURES as problem:  # plugins have metrics of their own
            if is_the_hosts(problem):
                raise
            _log.error("%s cannot be written", request.path, exc_info=problem)
            return _status(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _refuse(self, status: HTTPStatus) -> None:
        if self._answering is None:
            page = _status(status)
            self._transport.write(_head(page, len(page.body), compressed=False, keeps_alive=False) + page.body)
        self._transport.close()


def _takes_gzip(accepts: bytes) -> bool:
    codings = (coding.replace(b" ", b"").lower() for coding in accepts.split(b","))
    return any(coding.split(b";")[0] in (b"gzip", b"*") and not coding.endswith((b";q=0", b";q=0.0")) for coding in codings)


async def _compressed(body: bytes) -> bytes:
    if len(body) <= _COMPRESSED_AT_ONCE_BYTES:
        return gzip.compress(body, _COMPRESSION_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, _COMPRESSION_LEVEL, mtime=0)


def _status(status: HTTPStatus) -> Page:
    return Page(f"{status.value}: {status.phrase}\n".encode(), status=status)


def _head(page: Page, length: int, compressed: bool, keeps_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}", f"Content-Type: {page.content_type}", f"Content-Length: {length}"]
    lines.append("Vary: Accept-Encoding")
    if compressed:
        lines.append("Content-Encoding: gzip")
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    if not keeps_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()
