"""The port for pushes keeps few connections, of which those that say nothing make room for those that do."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from endpick.transport.tls import make_self_signed
from endpick_builtin.collection import push_server
from endpick_builtin.collection.push_server import IDLE_SECONDS, MAX_CONNECTIONS, Closed, PushBounds, PushServer

pytestmark = pytest.mark.asyncio
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def listening(answer=None, most=MAX_CONNECTIONS, tls=None, idle=IDLE_SECONDS):
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
    server = PushServer(app, lambda reason: closed.update([reason]), PushBounds(most, idle))
    await server.start("127.0.0.1", 0, tls)
    try:
        yield server, closed
    finally:
        await server.stop()


async def connected(server, said=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    return reader, writer


async def posted(server, trusts=None):
    scheme = "http" if trusts is None else "https"
    async with aiohttp.ClientSession() as client:  # noqa: SIM117
        async with client.post(f"{scheme}://127.0.0.1:{server.port}/", data=b"x" * 100_000, ssl=trusts or True) as response:
            return await response.text()


@pytest.fixture
def authenticated(tmp_path):
    """Contexts of a server that asks for a certificate and of a client that has it, and a file with that certificate and its key."""
    certificate, key = make_self_signed()
    pair = tmp_path / "pair.pem"
    pair.write_bytes(key + certificate)
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pair), ssl.create_default_context(cafile=pair)
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (server, client):
        context.load_cert_chain(pair)
    return server, client, pair


@pytest.mark.parametrize("said", [b"", HEAD])
async def test_a_push_is_taken_beside_twice_as_many_connections_as_may_be_that_say_nothing_or_half(said):
    async with listening() as (server, closed), asyncio.timeout(20):
        idle = [await connected(server, said) for _ in range(2 * MAX_CONNECTIONS)]
        assert await posted(server) == "taken"
        assert closed[Closed.CROWDED] >= MAX_CONNECTIONS
        assert await idle[0][0].read() == b"", "the first of them had said nothing for longest"
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
async def test_handshakes_that_do_not_end_make_room_as_other_connections_do(said, authenticated):
    serves, trusts, _ = authenticated
    async with listening(most=8, tls=serves) as (server, closed), asyncio.timeout(20):
        assert await posted(server, trusts) == "taken"
        idle = [await connected(server, said) for _ in range(20)]
        assert await posted(server, trusts) == "taken"
        assert closed[Closed.CROWDED] >= 20 - 8
        assert await idle[0][0].read() == b"", "the first of them had said nothing for longest"
        for _, writer in idle:
            writer.close()


async def test_a_client_that_sends_hundreds_of_certificates_is_hung_up_on_and_counted(authenticated):
    serves, trusts, pair = authenticated
    client = ssl.create_default_context(cafile=pair)
    certificate = pair.read_bytes()[pair.read_bytes().index(b"-----BEGIN CERT") :]
    many = pair.with_name("many.pem")
    many.write_bytes(pair.read_bytes() + certificate * 200)
    client.load_cert_chain(many)
    async with listening(tls=serves) as (server, closed), asyncio.timeout(20):
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await posted(server, client)
        assert closed == {Closed.LONG: 1}
        assert await posted(server, trusts) == "taken"


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


@pytest.mark.parametrize(("idle", "is_closed"), [(0.05, True), (IDLE_SECONDS, False)])
async def test_a_connection_is_closed_and_counted_whose_next_request_does_not_come(monkeypatch, idle, is_closed):
    monkeypatch.setattr(push_server, "_SWEEP_SECONDS", 0.02)
    async with listening(idle=idle) as (server, closed), asyncio.timeout(20):
        reader, writer = await connected(server, HEAD + b"content-length: 1\r\n\r\nx")
        assert (await reader.readuntil(b"taken")).startswith(b"HTTP/1.1 200")
        if is_closed:
            assert await reader.read() == b""
        else:
            await asyncio.sleep(0.2)
        assert closed[Closed.SLOW] == is_closed
        writer.close()


async def test_nothing_listens_where_the_port_is_taken():
    async with listening() as (server, _):
        other = PushServer(web.Application(), lambda _: None, PushBounds())
        with pytest.raises(OSError, match=r"invalid|cannot|assign|known"):
            await other.start("256.0.0.1", server.port)
        await other.stop()
        assert other.port == 0
