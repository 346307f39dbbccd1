"""The admin port."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.serve.admin import AdminServer, admin_pages
from endpick.serve.admin_http import Page, Pages
from endpick.serve.admin_limits import AdminLimits
from endpick.serve.exposition import EventCounts
from endpick.transport.address import ListenError, ListenSettings
from endpick.transport.server import open_server

LONGEST = AdminLimits().max_request_bytes


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


@pytest.mark.asyncio
async def test_metrics_and_readiness_are_told_over_http():
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    registry.register(EventCounts("events", "Events.", lambda: {"reset": 7}))
    report = [(False, "starting\n")]
    server = AdminServer(admin_pages(registry, lambda: report[0]), "127.0.0.1", 0)
    port = await server.start()
    try:
        assert await fetch(port, "/healthz") == (503, "starting\n")
        report[0] = (True, "ok\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        status, page = await fetch(port, "/metrics")
    finally:
        await server.stop()

    assert status == 200
    assert "things_total 3.0" in page
    assert 'events_total{event="reset"} 7.0' in page


@pytest.mark.asyncio
async def test_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = AdminServer(admin_pages(CollectorRegistry(), lambda: (True, "")), "127.0.0.1", port)

        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            await server.start()


@pytest.mark.asyncio
async def test_host_that_has_no_address_is_told_in_the_systems_words_by_every_port():
    host = "no-such-host.invalid"
    ports = AdminServer(admin_pages(CollectorRegistry(), lambda: (True, "")), host, 9), open_server("h2", ListenSettings(host, 9), {})
    try:
        socket.getaddrinfo(host, 9)
    except socket.gaierror as error:
        reason = error.strerror
    told = []
    for port in ports:
        with pytest.raises(ListenError) as refusal:
            await port.start()
        told.append(str(refusal.value))

    assert told == [f"cannot listen on {host}, port 9: {reason}"] * 2


class CountedCollector(Collector):
    """Notes how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self):
        self.asked += 1
        yield GaugeMetricFamily("asked", "How often. " * 5000, self.asked)


@pytest.mark.asyncio
async def test_scrapers_that_come_together_share_a_page_and_take_it_compressed():
    collector = CountedCollector()
    server = AdminServer(admin_pages(collector, lambda: (True, "")), "127.0.0.1", 0)
    port = await server.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def scrape(encoding: str) -> tuple[str | None, int, str]:
                async with session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": encoding}) as response:
                    length = int(response.headers["Content-Length"])
                    return response.headers.get("Content-Encoding"), length, await response.text()

            pages = await asyncio.gather(*(scrape("gzip") for _ in range(20)))
            plain = await scrape("identity")
    finally:
        await server.stop()

    assert {encoding for encoding, _, _ in pages} == {"gzip"}
    assert all(length < len(page) / 20 for _, length, page in pages)
    assert plain[0] is None
    assert plain[1] == len(plain[2])
    assert collector.asked < 20


@pytest.mark.asyncio
async def test_a_page_that_scrapers_share_is_compressed_once(monkeypatch):
    compressed = []
    compress = gzip.compress

    def counted(body: bytes, level: int, *, mtime: int) -> bytes:
        compressed.append(len(body))
        return compress(body, level, mtime=mtime)

    monkeypatch.setattr("endpick.serve.admin_http.gzip.compress", counted)
    collector = CountedCollector()
    server = AdminServer(admin_pages(collector, lambda: (True, "")), "127.0.0.1", 0)
    port = await server.start()
    try:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in clients:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
        answers = [await reader.read() for reader, _ in clients]
        for _, writer in clients:
            writer.close()
    finally:
        await server.stop()
    assert all(b"Content-Encoding: gzip" in answer for answer in answers)
    assert len(compressed) <= collector.asked < 20


@asynccontextmanager
async def talking_to(pages: Pages, limits: AdminLimits | None = None) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of these pages; the server ends first, so that a test that hangs on the client's side shows."""
    server = AdminServer(pages, "127.0.0.1", 0, limits)
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
    try:
        yield reader, writer
    finally:
        await server.stop()
        writer.close()


async def read_answer(reader: asyncio.StreamReader, *, with_body: bool = True) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers and body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.rstrip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return status, headers, await reader.readexactly(int(headers["Content-Length"])) if with_body else b""


async def page() -> Page:
    return Page(b"here\n")


async def broken_page() -> Page:
    raise RuntimeError("it fell apart")


@pytest.mark.asyncio
async def test_requests_on_one_connection_are_answered_in_order_each_as_it_deserves(caplog: pytest.LogCaptureFixture):
    lines = ("GET /page?with=query", "HEAD /page", "POST /page", "GET /nowhere", "GET /broken", "GET /page")
    async with talking_to({"/page": page, "/broken": broken_page}) as (reader, writer):
        writer.write("".join(f"{line} HTTP/1.1\r\nHost: me\r\n\r\n" for line in lines).encode())
        answers = [await read_answer(reader, with_body=not line.startswith("HEAD")) for line in lines]

    assert [(status, body) for status, _, body in answers] == [
        ("HTTP/1.1 200 OK", b"here\n"),
        ("HTTP/1.1 200 OK", b""),
        ("HTTP/1.1 405 Method Not Allowed", b"405: Method Not Allowed\n"),
        ("HTTP/1.1 404 Not Found", b"404: Not Found\n"),
        ("HTTP/1.1 500 Internal Server Error", b"500: Internal Server Error\n"),
        ("HTTP/1.1 200 OK", b"here\n"),
    ]
    assert answers[1][1]["Content-Length"] == "5"
    assert answers[2][1]["Allow"] == "GET, HEAD"
    assert "it fell apart" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("thrown", [asyncio.CancelledError(), BaseExceptionGroup("both", [SystemExit(9)])], ids=["cancelled", "group"])
async def test_a_page_on_which_a_plugins_metrics_throw_anything_is_answered(thrown: BaseException):
    async def thrown_page() -> Page:
        raise thrown

    async with talking_to({"/page": page, "/thrown": thrown_page}) as (reader, writer), asyncio.timeout(10):
        writer.write(b"GET /thrown HTTP/1.1\r\nHost: me\r\n\r\nGET /page HTTP/1.1\r\nHost: me\r\n\r\n")
        assert [(await read_answer(reader))[0] for _ in range(2)] == ["HTTP/1.1 500 Internal Server Error", "HTTP/1.1 200 OK"]


@pytest.mark.asyncio
@pytest.mark.parametrize("asked", ["GET /page HTTP/1.0\r\n\r\n", "GET /page HTTP/1.1\r\nConnection: close\r\n\r\n"])
async def test_a_client_that_wants_one_answer_gets_it_and_the_end(asked: str):
    async with talking_to({"/page": page}) as (reader, writer):
        writer.write(asked.encode())
        answered = await reader.read()

    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close\r\n" in answered
    assert answered.endswith(b"\r\n\r\nhere\n")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"\x16\x03\x01 a TLS handshake\r\n\r\n", b"400 Bad Request"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * LONGEST, b"413 "),
    ],
)
async def test_what_is_no_request_and_what_never_ends_is_refused_and_the_connection_closed(asked: bytes, status: bytes):
    async with talking_to({"/page": page}) as (reader, writer):
        writer.write(asked)
        answered = await reader.read()

    assert answered.startswith(b"HTTP/1.1 " + status)


@pytest.mark.asyncio
async def test_pages_are_made_no_faster_than_the_client_takes_them():
    made = 0

    async def long_page() -> Page:
        nonlocal made
        made += 1
        return Page(b"x" * 6_000_000)

    async with talking_to({"/long": long_page, "/page": page}) as (reader, writer):
        writer.write(b"GET /long HTTP/1.1\r\n\r\n" * 16)
        await read_answer(reader)
        made_when_one_was_read = made
        for _ in range(15):
            await read_answer(reader)

    assert made_when_one_was_read < 5
    assert made == 16


@pytest.mark.asyncio
async def test_a_connection_with_more_requests_than_anyone_waits_for_is_closed():
    async with talking_to({"/page": page}) as (reader, writer):
        writer.write(b"GET /page HTTP/1.1\r\n\r\n" * 17)
        assert await reader.read() == b""


@pytest.mark.asyncio
async def test_everything_else_has_a_turn_between_two_answers_of_a_connection():
    turns: list[int] = []
    made = 0

    async def counted_page() -> Page:
        nonlocal made
        made += 1
        return Page(b"here\n")

    async with talking_to({"/page": counted_page}) as (reader, writer):
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.append(made)
            if made < 16:
                loop.call_soon(turn)

        turn()
        writer.write(b"GET /page HTTP/1.1\r\n\r\n" * 16)
        for _ in range(16):
            await read_answer(reader)

    assert {*range(1, 16)} <= {*turns}


@pytest.mark.asyncio
async def test_a_page_that_clients_do_not_take_is_not_copied_for_them():
    written = b"x" * 20_000_000

    async def long_page() -> Page:
        return Page(written)

    async with AsyncExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            reader, writer = await stack.enter_async_context(talking_to({"/long": long_page}))
            writer.write(b"GET /long HTTP/1.1\r\n\r\n")
            await reader.readexactly(100_000)
        assert tracemalloc.get_traced_memory()[0] - before < len(written) / 2
        assert len(await reader.readexactly(19_900_000)) == 19_900_000


@pytest.mark.asyncio
async def test_a_connection_on_which_nothing_happens_is_closed(monkeypatch: pytest.MonkeyPatch):
    assert AdminLimits().idle_seconds > 60, "scrapers come once a minute, and keep their connections"
    monkeypatch.setattr("endpick.serve.admin._TICK_SECONDS", 0.01)
    async with talking_to({"/page": page}, AdminLimits(idle_seconds=0.01)) as (reader, writer):
        writer.write(b"GET /page HTTP/1.1\r\n\r\nGET /page HTTP/1.1\r\nHost: ")
        answered = b"".join([line async for line in reader])

    assert answered.count(b"here\n") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("accepts", "encoding"), [("gzip, deflate", "gzip"), ("*", "gzip"), ("gzip;q=0", None), ("br, deflate", None), ("GZIP ;q=0.5", "gzip")]
)
async def test_a_page_is_compressed_only_for_clients_that_take_gzip(accepts: str, encoding: str | None):
    async with talking_to({"/page": page}) as (reader, writer):
        writer.write(f"GET /page HTTP/1.1\r\naccept-encoding: {accepts}\r\n\r\n".encode())
        _, headers, body = await read_answer(reader)

    assert headers.get("Content-Encoding") == encoding
    assert headers["Vary"] == "Accept-Encoding"
    assert (gzip.decompress(body) if encoding else body) == b"here\n"
