"""An API server over TLS that means harm: what it sends is read in turns, and nothing of it but an answer gets any further."""

from __future__ import annotations

import asyncio
import ssl
import struct

import pytest
from unit.builtin.test_pages_over_tls import NotedTurns, hanging_up, listening, server_tls

from endpick.api import Limits, PluginContext
from endpick.transport.tls import make_self_signed
from endpick_builtin.kubernetes import http2
from endpick_builtin.kubernetes.access import Access
from endpick_builtin.kubernetes.client import CLIENT_LIMITS, ApiClient, ApiError
from endpick_builtin.kubernetes.pages import MOST_ITEM_BYTES, Pace
from endpick_builtin.kubernetes.patience import Patience

pytestmark = pytest.mark.asyncio

DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 1) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


OK = b"\x88"
BEGUN = frame(SETTINGS, stream_id=0) + frame(HEADERS, OK, END_HEADERS)


class Taking:
    """A writer whose server takes what it is sent, or nothing from now on."""

    def __init__(self) -> None:
        self.takes = True
        self.is_gone = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        if self.is_gone:
            raise ConnectionResetError
        if not self.takes:
            await asyncio.Event().wait()


def exchange(*said: bytes, ends: bool = True) -> tuple[http2.Exchange, Taking]:
    """One whose server says this, and then nothing, or hangs up."""
    reader, writer = asyncio.StreamReader(), Taking()
    for part in said:
        reader.feed_data(part)
    if ends:
        reader.feed_eof()
    return http2.Exchange(reader, writer, 0.05, Pace()), writer


ASKED = {":method": "GET", ":scheme": "https", ":authority": "a", ":path": "/"}


async def answered(asking: http2.Exchange) -> bytes:
    await asking.begin(ASKED)
    return b"".join([chunk async for chunk in asking.chunks()])


async def test_an_answer_is_read_to_its_end():
    asking, _ = exchange(BEGUN, frame(DATA, b"one"), frame(DATA, b"two", END_STREAM))
    assert await answered(asking) == b"onetwo"
    assert asking.headers == {":status": "200"}


@pytest.mark.parametrize(
    "block",
    [
        OK + b"\0\x05",
        OK + b"\0",
        OK + b"\0\x01a\x7f\xff\xff\xff\xff\x7f",
        OK + b"\xff" * 16_000,
        OK + b"\xff\xff",
        OK + b"\xbe",
        OK + b"\x3f\xe1\xff\x7f",
        OK + b"\0\x81\xff\x01b",
        OK + literal(b"a", b"b") * 3000,
    ],
    ids=["no name", "no length", "no value", "no end", "no index", "unknown", "table", "huffman", "list"],
)
async def test_header_fields_that_are_none_break_the_answer_and_print_nothing(block, capfd):
    asking, _ = exchange(frame(SETTINGS, stream_id=0), frame(HEADERS, block[:16_384], END_HEADERS))
    with pytest.raises(http2.LostError, match="is not HTTP/2"):
        await answered(asking)
    assert capfd.readouterr() == ("", "")


async def test_of_header_fields_no_more_is_read_than_any_server_sends_in_earnest():
    block = OK + literal(b"a", b"b" * 100) * 100
    parts = frame(HEADERS, block[:10_000]), frame(CONTINUATION, block[10_000:] * 20, END_HEADERS)
    asking, _ = exchange(frame(SETTINGS, stream_id=0), *parts)
    with pytest.raises(http2.LostError, match="bytes of header fields"):
        await answered(asking)


async def test_header_fields_beyond_ascii_are_fields_like_others():
    asking, _ = exchange(frame(SETTINGS, stream_id=0), frame(HEADERS, OK + literal(b"x", b"\xff\xfe"), END_HEADERS | END_STREAM))
    assert await answered(asking) == b""
    assert asking.headers["x"] == "\xff\xfe"


async def test_frames_that_hold_nothing_are_read_in_turns():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    asking, _ = exchange(BEGUN, frame(DATA) * 20_000, frame(DATA, b"end", END_STREAM))
    counting = asyncio.create_task(count())
    assert await answered(asking) == b"end"
    counting.cancel()
    assert turns > 5, "20,000 frames take more than a tenth of a second"


async def test_what_came_before_the_connection_was_gone_is_read():
    asking, writer = exchange(BEGUN, frame(DATA, b"one"), frame(DATA, b"two"))
    await asking.begin(ASKED)
    writer.is_gone = True
    chunks = asking.chunks()
    assert await anext(chunks) == b"one"
    assert await anext(chunks) == b"two"
    with pytest.raises(http2.LostError, match="was closed"):
        await anext(chunks)


async def test_a_server_that_has_endpick_answer_and_takes_nothing_is_given_up():
    asking, writer = exchange(BEGUN, ends=False)
    await asking.begin(ASKED)
    writer.takes = False
    asking._reader.feed_data(frame(PING, b"12345678", stream_id=0))
    with pytest.raises(http2.LostError, match="has taken nothing"):
        await anext(asking.chunks())


@pytest.fixture(scope="module")
def pem() -> tuple[bytes, bytes]:
    return make_self_signed()


def client_of(port: int, *protocols: str, most_object_bytes: int = MOST_ITEM_BYTES) -> ApiClient:
    """Watches over HTTP/2 where protocols are named."""

    def trusting() -> ssl.SSLContext:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return tls

    http2_tls = trusting() if protocols else None
    if http2_tls is not None:
        http2_tls.set_alpn_protocols(list(protocols))
    access = Access(f"https://127.0.0.1:{port}", trusting(), http2_tls, "token", None, "default", "a test")
    limits = Limits(PluginContext(), CLIENT_LIMITS)
    return ApiClient(access, Patience(connect_seconds=0.3, page_seconds=5.0), 1.0, limits, most_object_bytes=most_object_bytes)


async def asked(client: ApiClient, *, watch: bool) -> None:
    client.open()
    try:
        if watch:
            await client.watch("/pods", {}, "1", 5, lambda _: None)
        else:
            await client.page("/pods", {}, lambda _: None)
    finally:
        await client.close()


@pytest.mark.parametrize("watch", [False, True], ids=["list", "watch"])
async def test_an_api_server_that_shows_hundreds_of_certificates_is_not_read(tmp_path, pem, watch):
    async with listening(lambda reader, writer: hanging_up(reader, writer, b""), server_tls(tmp_path, pem, others=100)) as port:
        with pytest.raises(ApiError, match="the handshake of its TLS is longer than 24 KiB"):
            await asked(client_of(port, "h2", "http/1.1"), watch=watch)


@pytest.mark.parametrize("watch", [False, True], ids=["list", "watch"])
async def test_who_takes_longer_objects_takes_longer_handshakes(tmp_path, pem, watch):
    async with listening(lambda reader, writer: hanging_up(reader, writer, b""), server_tls(tmp_path, pem, others=100)) as port:
        with pytest.raises(ApiError, match="the answer is application/octet-stream, not JSON"):
            await asked(client_of(port, "http/1.1", most_object_bytes=16 * 2**20), watch=watch)


async def test_an_api_server_that_does_not_begin_its_handshake_is_given_up():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(silent) as port:
        with pytest.raises(ApiError, match=r"no connection within 0\.3 s"):
            await asked(client_of(port), watch=False)


async def test_what_an_api_server_sends_is_decrypted_in_turns(tmp_path, pem):
    """Records of one byte each; the loop's own TLS would decrypt all that have arrived at once."""
    body = b'{"metadata":{},"items":[]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(body) + 20_000)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        for byte in body + b" " * 20_000:
            writer.write(bytes([byte]))
        await writer.drain()
        writer.close()

    joined: list[str] = []
    async with listening(speak, server_tls(tmp_path, pem)) as port:
        client = client_of(port)
        client._turns = NotedTurns(client._turns, joined)
        await asked(client, watch=False)
    assert len(joined) > 20, "440 KB of records, 4 KB in each turn"


@pytest.mark.parametrize("status", [b"abc", b"\xb2\x30\x30", b"-1", b"1000", b""])
async def test_a_status_that_is_none_is_an_answer_that_means_nothing(tmp_path, pem, status):
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(frame(SETTINGS, stream_id=0) + frame(HEADERS, literal(b":status", status), END_HEADERS | END_STREAM))
        await reader.read()
        writer.close()

    tls = server_tls(tmp_path, pem)
    tls.set_alpn_protocols(["h2"])
    async with listening(speak, tls) as port:
        with pytest.raises(ApiError) as refused:
            await asked(client_of(port, "h2"), watch=True)
    assert refused.value.status == 0
