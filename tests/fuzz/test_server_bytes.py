"""Bytes that model servers, and API servers over HTTP/2, answer endpick itself with: HTTP, frames, metrics pages, lists of models."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.api import Limits, PluginContext, Unavailable
from endpick.api.metrics import MetricsPage
from endpick_builtin.collection.http_pages import HttpPages
from endpick_builtin.collection.page_limits import MAX_PAGE_BYTES, PAGE_LIMITS
from endpick_builtin.collection.sources import model_list_of
from endpick_builtin.kubernetes import http2
from endpick_builtin.kubernetes.pages import Pace
from fuzz.bounds import bounded, mixed

PAGE = mixed(
    b"vllm:num_requests_waiting",
    b"{",
    b"}",
    b'model_name="m"',
    b'a="\\"\\n\\\\"',
    b",",
    b" 1.5",
    b" NaN",
    b" +Inf",
    b" 1e999",
    b" 1700000000000",
    b"\n",
    b"# HELP ",
    b"# TYPE vllm:num_requests_waiting gauge\n",
    b"\xff",
    b"\r",
    b"\t",
)


@given(PAGE)
def test_a_metrics_page_is_read_as_far_as_it_makes_sense(page):
    samples = bounded(lambda body: MetricsPage(body).samples("vllm:num_requests_waiting"), page)

    assert len(samples) <= page.count(b"vllm:num_requests_waiting")
    assert all(isinstance(sample.value, float) for sample in samples)
    MetricsPage(page).newest("vllm:num_requests_waiting", {"model_name": "m"})


@given(
    mixed(b'{"object":"list","data":[', b'{"id":"m","parent":null}', b'{"id":"a","parent":"m"}', b",", b"]}", b"null", b"\xff", b"[" * 40)
)
def test_a_list_of_models_is_read_or_unavailable(body):
    try:
        models = bounded(model_list_of, body)
    except Unavailable:
        return
    assert all(isinstance(model.id, str) for model in models)


ANSWER = mixed(
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.0 404 No\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"abc",
    b"\x1f\x8b\x08\x00",
)


@settings(max_examples=max(1, settings().max_examples // 4))
@given(st.lists(ANSWER, min_size=1, max_size=3))
def test_an_http_answer_is_a_page_or_unavailable(answers):
    asyncio.run(_fetch(answers))


async def _fetch(answers: list[bytes]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0) if answers else b"")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    authority = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pages = HttpPages(None, "text/plain", Limits(PluginContext(), PAGE_LIMITS))
    try:
        for _ in range(len(answers)):
            try:
                page = await pages.get(authority, "/metrics")
            except Unavailable:
                continue
            assert len(page) <= MAX_PAGE_BYTES
    finally:
        await pages.close()
        server.close()
        await server.wait_closed()


FRAMES = mixed(
    b"\0\0\0\x04\0\0\0\0\0",
    b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0",
    b"\0\0\x01\x01\x04\0\0\0\x01\x88",
    b"\0\0\x06\x01\x04\0\0\0\x01\x88\0\x01a\x01\xff",
    b"\0\0\x03\x01\x04\0\0\0\x01\x88\0\x05",
    b"\0\0\x02\x01\0\0\0\0\x01\x88\0",
    b"\0\0\x03\x09\x04\0\0\0\x01\x01a\x00",
    b"\0\0\x03\0\0\0\0\0\x01{}\n",
    b"\0\0\x00\0\0\0\0\0\x01",
    b"\0\0\x02\0\x09\0\0\0\x01\x01\0",
    b"\0\0\x08\x06\0\0\0\0\0pingping",
    b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08",
    b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01",
    b"\0\0\x05\x05\x04\0\0\0\x01\0\0\0\x02\x88",
    b"\0\0\x01\x63\0\0\0\0\x01x",
)


class _Unread:
    """A writer of which no answer is read."""

    def write(self, data: bytes) -> None:
        """Take it."""

    async def drain(self) -> None:
        """Everything was taken."""


async def _answered_over_http2(data: bytes) -> bytes:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    exchange = http2.Exchange(reader, _Unread(), 1.0, Pace())
    await exchange.begin({":method": "GET", ":scheme": "https", ":authority": "a", ":path": "/"})
    return b"".join([chunk async for chunk in exchange.chunks()])


@given(FRAMES)
def test_frames_are_an_answer_or_the_connection_is_lost(data):
    try:
        body = bounded(lambda said: asyncio.run(_answered_over_http2(said)), data, calls=20_000, calls_per_byte=100)
    except http2.LostError:
        return
    assert len(body) <= len(data)
