"""Pages over TLS: servers that make much work of it are read in turns, and what has arrived is read though its server has hung up."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from endpick.api import Unavailable
from endpick.transport.tls import make_self_signed
from unit.builtin.pages import at, metrics_source, started

pytestmark = pytest.mark.asyncio
LONG = b"# a comment\n" * 60_000 + b"up 1\n"


@pytest.fixture(scope="module")
def pem() -> tuple[bytes, bytes]:
    return make_self_signed()


def server_tls(tmp_path, pem, others: int = 0) -> ssl.SSLContext:
    """With so many certificates more than it needs."""
    certificate, key = pem
    file = tmp_path / "server.pem"
    file.write_bytes(certificate * (others + 1) + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    return tls


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, page: bytes) -> None:
    """Answer without a length, and close."""
    with suppress(OSError, EOFError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + page)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def listening(speak, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server, all of whose connections have ended afterwards."""
    async with await asyncio.start_server(speak, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
        async with asyncio.timeout(5):
            while server._active_count:  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0)


@pytest.mark.parametrize("page", [b"up 1\n", LONG], ids=["short", "long"])
async def test_a_page_is_read_to_its_end_though_its_server_has_hung_up(tmp_path, pem, page):
    async with (
        listening(lambda reader, writer: hanging_up(reader, writer, page), server_tls(tmp_path, pem)) as port,
        started(metrics_source(scheme="https")) as source,
    ):
        assert (await source.poll(at(port))).body == page


async def test_a_server_that_shows_hundreds_of_certificates_is_not_read(tmp_path, pem):
    async with (
        listening(lambda reader, writer: hanging_up(reader, writer, b""), server_tls(tmp_path, pem, others=100)) as port,
        started(metrics_source(scheme="https")) as source,
    ):
        with pytest.raises(Unavailable, match="the handshake of its TLS is longer than 24 KiB"):
            await source.poll(at(port))


async def test_who_takes_longer_pages_takes_longer_handshakes(tmp_path, pem):
    async with (
        listening(lambda reader, writer: hanging_up(reader, writer, b"up 1\n"), server_tls(tmp_path, pem, others=100)) as port,
        started(metrics_source(scheme="https", maxPageBytes=64 * 2**20)) as source,
    ):
        assert (await source.poll(at(port))).body == b"up 1\n"


class NotedTurns:
    """Turns that remember who joined."""

    def __init__(self, turns, joined):
        self._turns, self._joined = turns, joined

    def join(self, turn, peer=""):
        self._joined.append(peer)
        return self._turns.join(turn, peer)

    def __getattr__(self, name):
        return getattr(self._turns, name)


async def test_handshakes_with_servers_that_answer_together_stand_in_one_queue(tmp_path, pem):
    """Each is begun and gone on with in a turn, of which some fit between two looks at everything else."""
    async with (
        listening(lambda reader, writer: hanging_up(reader, writer, b"up 1\n"), server_tls(tmp_path, pem)) as port,
        started(metrics_source(scheme="https")) as source,
    ):
        joined = []
        source._pages._turns = NotedTurns(source._pages._turns, joined)
        pages = await asyncio.gather(*(source._pages.get(f"127.0.0.1:{port}", "/") for _ in range(20)))
    assert pages == [b"up 1\n"] * 20
    assert len(joined) >= 40


async def test_a_server_that_says_nothing_of_tls_is_given_up(tmp_path, pem):
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" * 100)
        with suppress(OSError):
            await reader.read()
        writer.close()

    async with listening(speak) as port, started(metrics_source(scheme="https")) as source:
        with pytest.raises(Unavailable, match=r"(?i)wrong.version|record layer"):
            await source.poll(at(port))
