"""How pages are fetched: from servers that speak HTTP well, badly, too much or not at all, over connections that are kept."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from endpick.api import Endpoint, Unavailable
from endpick_builtin.collection import connection_room
from endpick_builtin.collection.http_answer import Answer, TooMuchError
from endpick_builtin.collection.page_limits import MANY_CHUNKS, MAX_HEAD_BYTES, MAX_PAGE_BYTES, PageSize
from unit.builtin.pages import PAGE, at, metrics_source, serving, started

pytestmark = pytest.mark.asyncio
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def speaking(*answers: bytes, close: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives these answers, one after the other, whatever is asked; its port, and the connections that it has had."""
    connections: list[bytes] = []
    left = iter(answers)

    async def speak(reader, writer):
        connections.append(b"")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(next(left))
                if close:
                    break
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], connections


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", body])


async def test_the_query_of_a_url_is_not_told_because_a_key_may_be_in_it():
    async with speaking(answer(b"", status=b"403 Forbidden")) as (port, _), started(metrics_source(path="/metrics?key=secret")) as source:
        with pytest.raises(Unavailable) as refusal:
            await source.poll(at(port))
    assert str(refusal.value) == f"GET http://127.0.0.1:{port}/metrics answered 403"


async def test_an_answer_in_chunks_of_one_byte_is_refused():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n#\r\n" * 20_001 + b"0\r\n\r\n"
    async with speaking(chunked) as (port, _), started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="the answer comes in 1015 chunks of 1 bytes"):
            await source.poll(at(port))


@pytest.mark.parametrize("begin", [b"1;", b"1\r\n#\r\n0\r\nX: "], ids=["extension", "trailer"])
async def test_what_is_long_and_no_part_of_the_page_is_received_in_turns_as_long_pages_are(begin):
    async with speaking(CHUNKED + begin + b"x" * 1_000_000) as (port, _), started(metrics_source()) as source:
        polling = asyncio.create_task(source.poll(at(port)))
        async with asyncio.timeout(5):
            while not source._pages._long_answers._seated:
                assert not polling.done()
                await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def test_a_redirect_is_not_followed():
    visits: list[str] = []

    async def handler(request):
        visits.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="answered 302"):
            await source.poll(at(port))
    assert visits == ["/metrics"]


async def test_a_connection_that_the_server_closed_in_between_is_no_error():
    async with speaking(answer(PAGE), answer(PAGE), close=True) as (port, connections), started(metrics_source()) as source:
        assert [(await source.poll(at(port))).body for _ in range(2)] == [PAGE, PAGE]
    assert len(connections) == 2


async def test_a_kept_connection_that_breaks_when_it_is_used_is_replaced():
    closing = asyncio.Event()

    async def speak(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(PAGE))
        if not closing.is_set():
            closing.set()
            await reader.readuntil(b"\r\n\r\n")  # the next request reaches a server that has given the connection up
            writer.transport.abort()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server, started(metrics_source()) as source:
        port = server.sockets[0].getsockname()[1]
        assert [(await source.poll(at(port))).body for _ in range(2)] == [PAGE, PAGE]


async def test_an_interim_answer_is_passed_over():
    async with speaking(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(PAGE)) as (port, _), started(metrics_source()) as source:
        assert (await source.poll(at(port))).body == PAGE


async def test_an_answer_without_a_length_ends_with_its_connection():
    old = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + PAGE
    async with speaking(old, old, close=True) as (port, connections), started(metrics_source()) as source:
        assert [(await source.poll(at(port))).body for _ in range(2)] == [PAGE, PAGE]
    assert len(connections) == 2


async def test_what_a_server_says_unasked_is_never_taken_for_the_next_answer():
    async with speaking(answer(PAGE) + answer(b"old 1\n"), answer(b"new 1\n")) as (port, connections), started(metrics_source()) as source:
        assert [(await source.poll(at(port))).body for _ in range(2)] == [PAGE, b"new 1\n"]
    assert len(connections) == 2


@pytest.mark.parametrize(
    ("spoken", "reason", "needed"),
    [
        (answer(PAGE, *[b"X-%d: 1" % number for number in range(300)]), "the answer has more than 200 headers", 2),
        (CHUNKED + b"zz\r\n", "the answer is no HTTP", 2),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "the answer is no HTTP", 2),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (2 * MAX_HEAD_BYTES), "the headers of the answer are longer than 64 KiB", 2),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4000, "the headers of the answer are longer than 64 KiB", 2),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "the server wants to speak another protocol", 2),
        (CHUNKED + b"1;" + b"x" * 2 * MAX_PAGE_BYTES, "the page is longer than 8 MiB", 2),
        (answer(gzip.compress(PAGE)[:-4], b"Content-Encoding: gzip"), "the compressed answer cannot be unpacked: it is cut short", 1),
        (answer(PAGE, b"Content-Encoding: br"), "the answer is encoded with 'br', which was not asked for", 1),
        (answer(PAGE, b"Content-Encoding: gzip"), "the compressed answer cannot be unpacked", 1),
    ],
    ids=["headers", "chunks", "lengths", "header", "interim", "upgrade", "extension", "cut", "br", "gzip"],
)
async def test_an_answer_that_makes_no_sense_is_said_so_and_its_connection_kept_only_if_it_is_clear(spoken, reason, needed):
    async with speaking(spoken, answer(PAGE)) as (port, connections), started(metrics_source()) as source:
        with pytest.raises(Unavailable, match=f"GET http://127.*{reason}"):
            await source.poll(at(port))
        assert (await source.poll(at(port))).body == PAGE
    assert len(connections) == needed


@pytest.mark.parametrize("headers", [[b"X-%d: 1" % number for number in range(300)], [b"X: " + b"x" * (2 * MAX_HEAD_BYTES)]])
async def test_where_pages_may_be_long_their_headers_may(headers):
    source = metrics_source(maxPageBytes=2 * MAX_PAGE_BYTES)
    async with speaking(answer(PAGE, *headers)) as (port, _), started(source):
        assert (await source.poll(at(port))).body == PAGE


async def test_a_page_that_came_compressed_all_the_same_is_unpacked():
    packed = [answer(pack(PAGE), b"Content-Encoding: " + name) for name, pack in ((b"gzip", gzip.compress), (b"deflate", zlib.compress))]
    async with speaking(*packed) as (port, _), started(metrics_source()) as source:
        assert [(await source.poll(at(port))).body for _ in packed] == [PAGE, PAGE]


async def test_a_page_that_did_not_change_is_the_same_object_until_its_endpoint_leaves():
    async with speaking(*[answer(PAGE)] * 3, answer(PAGE + b"more 1\n")) as (port, _), started(metrics_source()) as source:
        first, second = await source.poll(at(port)), await source.poll(at(port))
        source.endpoint_removed("default/a")
        third, fourth = await source.poll(at(port)), await source.poll(at(port))
    assert second is first
    assert third is not first
    assert fourth.body == PAGE + b"more 1\n"


async def test_connections_to_an_endpoint_that_left_are_closed():
    async with speaking(answer(PAGE), answer(PAGE)) as (port, connections), started(metrics_source()) as source:
        await source.poll(at(port))
        source.endpoint_removed("default/a")
        source.endpoint_removed("default/never-seen")
        await source.poll(at(port))
    assert len(connections) == 2


async def test_more_servers_than_connections_are_asked_in_turn_and_others_keep_theirs(monkeypatch):
    monkeypatch.setattr(connection_room, "descriptors_for_feeds", lambda: 3)
    asked: list[tuple[object, object]] = []

    async def handler(request):  # two connections to different servers may begin at one port
        asked.append((request.transport.get_extra_info("sockname"), request.transport.get_extra_info("peername")))
        return web.Response(body=PAGE)

    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(started(metrics_source())) for _ in range(2)]
        ports = [await stack.enter_async_context(serving(handler)) for _ in range(7)]
        assert (await other.poll(at(ports[0]))).body == PAGE
        hosts = [Endpoint(f"default/e{port}", "127.0.0.1", port) for port in ports]
        for _ in range(2):
            for endpoint in hosts:
                assert (await one.poll(endpoint)).body == PAGE
        assert len(set(asked)) == 15, "each time over a connection of its own: another has had the place since"
        assert [len(pages._pages._open) for pages in (one, other)] == [2, 1]
        for _ in range(3):
            for endpoint in hosts[-2:]:
                await one.poll(endpoint)
        assert len(set(asked)) == 15


async def test_a_server_that_finds_every_connection_in_use_is_told_apart_and_asked_later(monkeypatch):
    monkeypatch.setattr(connection_room, "descriptors_for_feeds", lambda: 1)
    release, came = asyncio.Event(), asyncio.Event()

    async def handler(request):
        came.set()
        await release.wait()
        return web.Response(body=PAGE)

    async with serving(handler) as port, serving(handler) as other, started(metrics_source()) as source:
        first = asyncio.create_task(source.poll(at(port)))
        await came.wait()
        with pytest.raises(Unavailable, match="as the limit of open files allows"):
            await source.poll(Endpoint("default/b", "127.0.0.1", other))
        release.set()
        assert (await first).body == PAGE
        assert (await source.poll(Endpoint("default/b", "127.0.0.1", other))).body == PAGE
        with pytest.raises(Unavailable, match="refused"):
            await source.poll(Endpoint("default/c", "127.0.0.1", 1))
        assert (await source.poll(at(port))).body == PAGE, "a connection that was not made takes no place"


@pytest.mark.parametrize(("length", "most"), [(1, 1015), (32, 2000), (64, 20_971)])
async def test_so_many_chunks_may_an_answer_have_by_their_length(length, most):
    answer = Answer(PageSize(MAX_PAGE_BYTES))
    for _ in range(most):
        answer.add(b"#" * length)
    with pytest.raises(TooMuchError, match=r"the answer comes in (more than 20971 chunks|\d+ chunks of \d+ bytes)") as caught:
        answer.add(b"#" * length)
    assert caught.value.limit is MANY_CHUNKS
