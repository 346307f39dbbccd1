"""The admin port, `/metrics` and `/healthz` over HTTP/1.1: what scrapers and probes use of HTTP and nothing else.

A web framework would be a quarter of what endpick imports at its start, and an eighth of its memory.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import httptools
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from endpick.observability.exposition import page_of
from endpick.transport.server import ListenError, ListenSettings, listening_socket

_log = logging.getLogger("endpick.serve")

IDLE_SECONDS = 75.0
"""A connection on which nothing happens for so long is closed; a scraper comes more often."""
MAX_REQUEST_BYTES = 64 * 1024
"""A request that is longer, or so many that wait for their answers, end the connection: scrapers and probes ask for little."""
_COMPRESSED_AT_ONCE_BYTES = 16 * 1024
"""A longer page is compressed in another thread, so that no request waits for it."""
_COMPRESSION_LEVEL = 6
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What one path answers."""

    body: bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK


Pages = dict[str, Callable[[], Awaitable[Page]]]
"""Each path, and what makes its page."""


class _SharedScrape:
    """The page that is being written: scrapers that ask meanwhile get the same, so that many cost what one does."""

    def __init__(self, exposed: Collector) -> None:
        self._exposed = exposed
        self._writing: asyncio.Task[bytes] | None = None

    async def page(self) -> Page:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(page_of(self._exposed))
        return Page(await asyncio.shield(self._writing), CONTENT_TYPE_LATEST)


def admin_pages(exposed: Collector, report: Callable[[], tuple[bool, str]]) -> Pages:
    """`/metrics`, and `/healthz`: 200 while `report` says that the process is ready, else 503; with the text that it gives."""

    async def healthz() -> Page:
        ready, text = report()
        return Page(text.encode(), status=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": _SharedScrape(exposed).page, "/healthz": healthz}


class AdminServer:
    """Serves pages on one port, beside the data plane."""

    def __init__(self, pages: Pages, host: str, port: int) -> None:
        """`host` empty: every interface; `port` 0: any free one."""
        self._pages = pages
        self._settings = ListenSettings(host, port)
        self._connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
        """
        bound = listening_socket(self._settings)
        port: int = bound.getsockname()[1]
        try:
            self._listener = await asyncio.get_running_loop().create_server(lambda: _Connection(self._pages, self._connections), sock=bound)
        except OSError as error:
            bound.close()
            raise ListenError.at(self._settings.host, port, error) from error
        return port

    async def stop(self) -> None:
        """Close the port and its connections; a page that is being written is not sent."""
        if self._listener is not None:
            self._listener.close()
        ending = [connection.end() for connection in tuple(self._connections)]
        await asyncio.gather(*ending)


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, as far as it matters here."""

    method: bytes
    path: str
    takes_gzip: bool
    keeps_alive: bool


class _Connection(asyncio.Protocol):
    """One connection, which answers one request after the other."""

    def __init__(self, pages: Pages, connections: set[_Connection]) -> None:
        self._pages = pages
        self._connections = connections
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._accepts = b""
        self._unanswered = 0
        """Bytes since the last answer."""
        self._requests: deque[_Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
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
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._unanswered += len(data)
        if self._unanswered > MAX_REQUEST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # not taken up: the request is answered as any other
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._answering is not None:
            self._answering.cancel()
        self._connections.discard(self)
        self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._taken.clear()

    def resume_writing(self) -> None:
        self._taken.set()

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
        path = self._url.partition(b"?")[0].decode("latin-1")
        request = _Request(self._parser.get_method(), path, _takes_gzip(self._accepts), self._parser.should_keep_alive())
        self._requests.append(request)
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        while self._requests and not self._transport.is_closing():
            self._stop_waiting()
            request = self._requests.popleft()
            page = await self._page(request)
            body, compressed = page.body, request.takes_gzip and page.status is HTTPStatus.OK
            if compressed:
                body = await _compressed(body)
            self._transport.write(_head(page, len(body), compressed, request.keeps_alive) + (b"" if request.method == b"HEAD" else body))
            if not request.keeps_alive:
                self._transport.close()
            self._wait()
            await self._taken.wait()
        self._answering = None
        self._unanswered = 0

    async def _page(self, request: _Request) -> Page:
        make = self._pages.get(request.path)
        if make is None:
            return _status(HTTPStatus.NOT_FOUND)
        if request.method not in (b"GET", b"HEAD"):
            return _status(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await make()
        except Exception:
            _log.exception("%s cannot be written", request.path)
            return _status(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _refuse(self, status: HTTPStatus) -> None:
        if self._answering is None:
            page = _status(status)
            self._transport.write(_head(page, len(page.body), compressed=False, keeps_alive=False) + page.body)
        self._transport.close()

    def _wait(self) -> None:
        """For the next request, and for the client to take the last answer."""
        self._stop_waiting()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._transport.abort)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()


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
