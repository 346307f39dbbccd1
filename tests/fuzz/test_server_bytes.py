"""Bytes that model servers answer: HTTP, metrics pages, lists of models."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.api import Unavailable
from endpick.api.metrics import MetricsPage
from endpick_builtin.collection.http_pages import MAX_PAGE_BYTES, HttpPages
from endpick_builtin.collection.sources import parse_model_list
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
        models = bounded(parse_model_list, body)
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
    pages = HttpPages("text/plain")
    try:
        for _ in range(len(answers)):
            try:
                page = await pages.get(authority, "/metrics")
            except Unavailable:
                continue
            assert len(page) <= MAX_PAGE_BYTES
    finally:
        pages.close()
        server.close()
        await server.wait_closed()
