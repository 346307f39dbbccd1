"""The port for pushes keeps few connections, of which those that say nothing make room for those that do."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from endpick_builtin.collection import push_server
from endpick_builtin.collection.push_server import MAX_CONNECTIONS, Closed, PushServer

pytestmark = pytest.mark.asyncio
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def listening(answer=None, most=MAX_CONNECTIONS):
    """A server whose handler waits for `answer`, if there is one; and how many connections it closed, by reason."""
    closed = Counter()

    async def take(request):
        with server.serving(request):
            closed["taken"] += 1
            await request.read()
            if answer is not None:
                await answer.wait()
            return web.Response(text="taken")

    app = web.Application()
    app.router.add_post("/", take)
    server = PushServer(app, lambda reason: closed.update([reason]), most)
    await server.start("127.0.0.1", 0)
    try:
        yield server, closed
    finally:
        await server.stop()


async def connected(server, said=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    return reader, writer


async def posted(server):
    async with aiohttp.ClientSession() as client, client.post(f"http://127.0.0.1:{server.port}/", data=b"x") as response:
        return await response.text()


@pytest.mark.parametrize("said", [b"", HEAD])
async def test_a_push_is_taken_beside_twice_as_many_connections_as_may_be_that_say_nothing_or_half(said):
    async with listening() as (server, closed), asyncio.timeout(20):
        idle = [await connected(server, said) for _ in range(2 * MAX_CONNECTIONS)]
        assert await posted(server) == "taken"
        assert closed[Closed.CROWDED] >= MAX_CONNECTIONS
        assert await idle[0][0].read() == b"", "the first of them had said nothing for longest"
        for _, writer in idle:
            writer.close()


async def test_a_request_under_way_keeps_its_place():
    answer = asyncio.Event()
    async with listening(answer, 2) as (server, closed), asyncio.timeout(20):
        waiting = [asyncio.ensure_future(posted(server)) for _ in range(2)]
        while closed["taken"] < 2:  # noqa: ASYNC110 - until both are being answered
            await asyncio.sleep(0)
        reader, writer = await connected(server)
        assert await reader.read() == b"", "there was no place"
        writer.close()
        assert closed == {Closed.CROWDED: 1, "taken": 2}
        answer.set()
        assert await asyncio.gather(*waiting) == ["taken", "taken"]


@pytest.mark.parametrize("said", [b"", HEAD])
async def test_a_connection_whose_request_does_not_come_is_closed(monkeypatch, said):
    monkeypatch.setattr(push_server, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(push_server, "_SWEEP_SECONDS", 0.02)
    async with listening() as (server, closed), asyncio.timeout(20):
        reader, writer = await connected(server, said)
        assert await reader.read() == b""
        assert closed[Closed.SLOW] == 1
        writer.close()
        assert await posted(server) == "taken"


async def test_nothing_listens_where_the_port_is_taken():
    async with listening() as (server, _):
        other = PushServer(web.Application(), lambda _: None)
        with pytest.raises(OSError, match=r"invalid|cannot|assign|known"):
            await other.start("256.0.0.1", server.port)
        await other.stop()
        assert other.port == 0
