"""`HttpPages` against servers that close, stall, or answer nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from endpick.api import Unavailable
from endpick_builtin.collection.http_pages import HttpPages

pytestmark = pytest.mark.asyncio
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage"


@asynccontextmanager
async def answering(*connections: list[bytes]) -> AsyncIterator[str]:
    """A server whose connections give these answers, one per request, and then close."""
    waiting = list(connections)

    async def answer(reader, writer):
        for each in waiting.pop(0):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(each)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_request_on_a_closed_kept_connection_is_repeated():
    pages = HttpPages("*/*")
    async with answering([OK], [OK]) as authority:
        assert await pages.get(authority, "/") == b"page"
        assert await pages.get(authority, "/") == b"page"
    pages.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\npa\r\n2\r\nge\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\npage",
    ],
)
async def test_each_framing_of_http_is_read(answer):
    async with answering([answer]) as authority:
        assert await HttpPages("*/*").get(authority, "/") == b"page"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the connection ended before the answer did"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the answer is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npage", "the connection ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\npage", "encoded with 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ntoo long!", "the page is longer than"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404"),
    ],
)
async def test_an_answer_that_is_no_page_is_unavailable(answer, reason):
    async with answering([answer]) as authority:
        with pytest.raises(Unavailable, match=f"GET http://{authority}/metrics.*{reason}"):
            await HttpPages("*/*", max_bytes=8).get(authority, "/metrics?key=secret")


async def test_a_timeout_closes_the_connection():
    pages = HttpPages("*/*")
    async with answering([b"HTTP/1.1 200 OK\r\n", OK], [OK]) as authority:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pages.get(authority, "/")
        assert await pages.get(authority, "/") == b"page"
    pages.close()
