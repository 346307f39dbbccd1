"""TLS on a connection without a network: what is done at once, what waits for its turn, and what ends it."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES, TlsChannel
from endpick.api.turns import Turns
from endpick.transport.tls import TlsSettings, read_certificate, server_context

pytestmark = pytest.mark.asyncio
TINY = 4000
"""Records of one byte: of 23 in TLS 1.3, so that they are more than a turn takes."""


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    settings = TlsSettings()
    return server_context(read_certificate(settings), settings)


class Socket:
    """What the event loop gives a channel to write to."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reads = True
        self.ended = ""

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def write_eof(self):
        self.ended += "eof "

    def close(self):
        self.ended += "close "

    def abort(self):
        self.ended += "abort "

    def is_closing(self):
        return bool(self.ended)


class Guest(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.transport: TlsChannel | None = None
        self.received = b""
        self.calls: list[str] = []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data

    def connection_lost(self, exc):
        self.calls.append("lost")

    def pause_writing(self):
        self.calls.append("pause")

    def resume_writing(self):
        self.calls.append("resume")


class Line:
    """A client and the channel that it speaks to."""

    def __init__(
        self,
        context: ssl.SSLContext,
        turns: Turns | None = None,
        peer: str = "",
        seconds: float = 3600.0,
        shows: Path | None = None,
        most_bytes: int = MOST_HANDSHAKE_BYTES,
    ) -> None:
        """`shows` has the certificates of the client, and its key."""
        self.socket, self.guest, self.failures, self.too_long = Socket(), Guest(), 0, 0
        self.channel = TlsChannel(self.guest, context, seconds, turns or Turns(0.002), peer, self._failed, most_bytes=most_bytes)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        if shows is not None:
            client.load_cert_chain(shows)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._incoming, self._outgoing)
        self.channel.connection_made(self.socket)

    def _failed(self, too_long: bool) -> None:
        self.failures += 1
        self.too_long += too_long

    def hello(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.client.do_handshake()
        self.deliver()

    def said(self, data: bytes) -> bytes:
        """The records of these bytes."""
        self.client.write(data)
        return self._outgoing.read()

    def deliver(self) -> None:
        """Hand over what the client wants to send."""
        if self._outgoing.pending:
            self.channel.data_received(self._outgoing.read())

    def hear(self) -> bytes:
        """What the server says to the client."""
        self._incoming.write(bytes(self.socket.written))
        self.socket.written.clear()
        try:
            return self.client.read()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return b""

    async def shaken(self) -> Line:
        """With the handshake done."""
        self.hello()
        await turned(lambda: bool(self.socket.written))
        self._incoming.write(bytes(self.socket.written))
        self.socket.written.clear()
        self.client.do_handshake()
        self.deliver()
        await turned(lambda: self.guest.transport is not None)
        return self


async def turned(condition) -> int:
    """Turn the event loop until the condition holds; how often that was."""
    for count in range(1000):
        if condition():
            return count
        await asyncio.sleep(0)
    raise AssertionError("never")


async def test_both_sides_hear_each_other(context):
    line = await Line(context).shaken()
    line.channel.data_received(line.said(b"ping"))
    assert line.guest.received == b"ping"
    line.guest.transport.write(b"po")
    line.guest.transport.writelines([b"", memoryview(b"n"), b"g"])
    assert line.hear() == b"po"
    assert line.client.read() + line.client.read() == b"ng"


async def test_handshakes_that_come_together_leave_everything_else_its_turns(context):
    turns = Turns(0.0)
    lines = [Line(context, turns) for _ in range(6)]
    for line in lines:
        line.hello()
    answered = []
    await turned(lambda: answered.append(sum(bool(line.socket.written) for line in lines)) or answered[-1] == len(lines))
    assert {after - before for before, after in pairwise(answered)} <= {0, 1}


async def test_one_address_does_not_keep_others_from_their_handshakes(context):
    turns = Turns(0.0)
    crowd = [Line(context, turns, "crowd") for _ in range(6)]
    gateway = Line(context, turns, "gateway")
    for line in (*crowd, gateway):
        line.hello()
    await turned(lambda: bool(gateway.socket.written))
    assert sum(bool(line.socket.written) for line in crowd) <= 1


async def test_records_that_hold_next_to_nothing_are_read_in_turns(context):
    turns = Turns(0.0)
    line, other = await Line(context, turns).shaken(), await Line(context, turns).shaken()
    line.channel.data_received(b"".join(line.said(b"x") for _ in range(TINY)))
    assert 0 < len(line.guest.received) < TINY, "a part at once"
    assert not line.socket.reads, "the client has to wait meanwhile"
    other.channel.data_received(other.said(b"short"))
    assert other.guest.received == b"short"
    assert await turned(lambda: len(line.guest.received) == TINY) > 1
    assert line.socket.reads

    line.channel.data_received(line.said(b"x"))
    assert len(line.guest.received) == TINY, "who has sent so much for nothing has nothing read at once"
    line.channel.data_received(line.said(b"y" * 16_000))
    await turned(lambda: line.guest.received.endswith(b"y"))
    line.channel.data_received(line.said(b"z"))
    assert line.guest.received.endswith(b"yz"), "but again from then on"


async def test_much_in_long_records_is_handed_on_in_order(context):
    line = await Line(context).shaken()
    sent = bytes(range(256)) * 2000
    line.channel.data_received(line.said(sent))
    await turned(lambda: len(line.guest.received) == len(sent))
    assert line.guest.received == sent


async def test_a_guest_that_pauses_gets_nothing_until_it_resumes(context):
    line = await Line(context).shaken()
    line.guest.transport.pause_reading()
    for _ in range(10):
        line.channel.data_received(line.said(b"a" * 16_000))
    await asyncio.sleep(0)
    assert (line.guest.received, line.socket.reads) == (b"", False)
    line.guest.transport.resume_reading()
    await turned(lambda: len(line.guest.received) == 160_000)
    assert line.socket.reads


async def test_a_client_that_ends_its_side_is_answered_in_kind(context):
    line = await Line(context).shaken()
    last = line.said(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        line.client.unwrap()
    line.channel.data_received(last)
    line.deliver()
    assert (line.guest.received, line.socket.ended) == (b"last words", "close ")
    line.guest.transport.write(b"too late")
    line.channel.connection_lost(None)
    assert line.guest.calls == ["lost"]
    assert line.hear() == b"", "the end, and nothing after it"


async def test_what_is_no_tls_ends_an_open_connection(context):
    line = await Line(context).shaken()
    line.channel.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert line.socket.ended == "close "
    line.channel.data_received(b"more")
    line.channel.connection_lost(None)
    assert (line.guest.received, line.guest.calls, line.failures) == (b"", ["lost"], 0)


async def test_after_the_end_of_the_servers_side_nothing_is_read(context):
    line = await Line(context).shaken()
    line.guest.transport.write_eof()
    line.channel.data_received(line.said(b"deaf"))
    assert (line.guest.received, line.socket.ended) == (b"", "eof ")


@pytest.mark.parametrize(
    ("certificates", "most_bytes", "is_taken"),
    [
        (20, MOST_HANDSHAKE_BYTES, True),
        (200, MOST_HANDSHAKE_BYTES, False),
        (200, 4 * MOST_HANDSHAKE_BYTES, True),
        (20, 2048, False),
    ],
)
async def test_hundreds_of_certificates_of_a_client_are_not_read(tmp_path, certificates, most_bytes, is_taken):
    settings = TlsSettings()
    files = read_certificate(settings)
    trusting = server_context(replace(files, client_ca=files.certificate), settings)
    shown = tmp_path / "client.pem"
    shown.write_bytes(files.key + files.certificate * certificates)
    line = Line(trusting, shows=shown, most_bytes=most_bytes)
    line.hello()
    await turned(lambda: bool(line.socket.written))
    line._incoming.write(bytes(line.socket.written))
    line.client.do_handshake()
    line.deliver()
    await turned(lambda: line.guest.transport is not None or line.failures == 1)
    assert (line.guest.transport is not None, line.too_long, line.socket.ended) == ((True, 0, "") if is_taken else (False, 1, "abort "))
    line.channel.connection_lost(None)
    assert line.failures == line.too_long


async def test_a_handshake_that_fails_is_told_once_and_the_client_why(context):
    line = Line(context)
    line.channel.data_received(b"\x16\x03\x01\x00\x04\x05\x00\x00\x00")
    await turned(lambda: line.failures == 1)
    line.channel.connection_lost(None)
    assert (line.failures, line.socket.ended, line.guest.calls) == (1, "close ", [])
    assert line.socket.written[0] == 21, "an alert"


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_handshake_that_does_not_come_is_given_up(context, leaves):
    line = Line(context, seconds=3600.0 if leaves else 0.0)
    if leaves:
        line.channel.connection_lost(None)
    await turned(lambda: line.failures == 1)
    assert line.socket.ended == ("" if leaves else "abort ")
    assert line.guest.calls == []


@pytest.mark.parametrize("how", ["failed", "lost", "aborted"])
async def test_a_handshake_that_came_to_nothing_leaves_nothing_behind(context, how):
    lines = [Line(context)]
    known = weakref.ref(lines[0].channel)
    if how == "failed":
        lines[0].channel.data_received(b"\x16\x03\x01\x00\x04\x05\x00\x00\x00")
        await turned(lambda: lines[0].failures == 1)
    elif how == "aborted":
        lines[0].hello()
        lines[0].channel.abort()
    lines[0].channel.connection_lost(None)
    lines.clear()
    await turned(lambda: True)
    await asyncio.sleep(0)
    gc.collect()
    assert known() is None, "and not until the time for handshakes is over"


async def test_a_channel_that_is_given_up_calls_nothing(context):
    line = Line(context)
    line.hello()
    line.channel.abort()
    line.channel.connection_lost(None)
    await asyncio.sleep(0)
    assert (line.failures, line.guest.calls, line.socket.ended) == (0, [], "abort ")


async def test_a_client_that_takes_nothing_is_not_answered_by_tls_itself(context):
    line = await Line(context).shaken()
    line.channel.pause_writing()
    line.channel._outgoing.write(b"as if TLS had answered")
    line.channel.data_received(line.said(b"x"))
    assert line.socket.ended == "abort "
    assert line.guest.calls == ["pause"]
