"""What publishers of KV events send that no library of ZeroMQ would: little of it is kept, and they are cut off and dialled again."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from endpick_builtin.producers.precise import kv_sockets, kv_turns, kv_zmtp
from endpick_builtin.producers.precise.kv_addresses import parts_of
from endpick_builtin.producers.precise.kv_sockets import Sockets, Subscriber
from endpick_builtin.producers.precise.kv_turns import Turns
from endpick_builtin.producers.precise.kv_zmtp import MAX_MESSAGE_BYTES, frame, message
from unit.builtin.kv_publisher import Publisher, until

pytestmark = pytest.mark.asyncio

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = frame(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB", 4)
PING = frame(b"\x04PING\0\0seen", 4)
LONG = MAX_MESSAGE_BYTES // 4


class Peer:
    """Takes connections one after the other, introduces itself as a publisher, and sends what it is told to."""

    def __init__(self, says: Callable[[socket.socket], None], greeting: bytes = GREETING + READY) -> None:
        self._says, self._greeting = says, greeting
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connected,), daemon=True).start()

    def _talk(self, connected: socket.socket) -> None:
        with connected:
            try:
                connected.sendall(self._greeting)
                self._says(connected)
                while some := connected.recv(4096):
                    self.heard += some
            except OSError:
                return

    def close(self) -> None:
        self._listening.close()


class Heard:
    """What a subscriber delivered, and how often it dialled again or cut a publisher off."""

    def __init__(self, sockets: Sockets | None = None, topic: str = "") -> None:
        self.messages: list[list[bytes]] = []
        self.again = self.cut_off = 0
        self.turns = Turns()
        self.subscriber = Subscriber(sockets or Sockets(), topic, self.turns, self._take, self._dialled, self._cut)

    def _take(self, frames: list[bytes]) -> Iterator[None]:
        self.messages.append(frames)
        return iter(())

    def _dialled(self) -> None:
        self.again += 1

    def _cut(self) -> None:
        self.cut_off += 1

    def close(self) -> None:
        self.subscriber.close()
        self.turns.close()


@contextmanager
def hearing(says, sockets: Sockets | None = None, greeting: bytes = GREETING + READY):
    peer, heard = Peer(says, greeting), Heard(sockets)
    try:
        heard.subscriber.connect(peer.address)
        yield peer, heard
    finally:
        heard.close()
        peer.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(kv_sockets, "CUT_OFF_SECONDS", 0.01)
    monkeypatch.setattr(kv_sockets, "_RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(kv_sockets, "_RECONNECT_MAX_SECONDS", 0.01)


async def test_a_message_without_an_end_is_cut_off_before_it_takes_more_memory_than_a_long_one():
    sent: list[int] = []
    piece = frame(bytes(LONG), 1)

    def endless(connected: socket.socket) -> None:
        sent.append(0)
        while True:
            connected.sendall(piece)
            sent[-1] += len(piece)

    with hearing(endless) as (_, heard):
        await until(lambda: heard.cut_off >= 2 and len(sent) >= 2)
        kernels = 16 * 1024 * 1024  # what is on its way, in buffers of both sides
        assert max(sent) <= MAX_MESSAGE_BYTES + kernels
        assert heard.messages == []


@pytest.mark.parametrize(
    "says",
    [
        frame(bytes(0), 1) * 2000,
        b"\x02" + (2**62).to_bytes(8, "big"),
        b"\x06" + (2**62).to_bytes(8, "big"),
        b"\x10\x00",
        frame(b"\x05ERROR\x02no", 4),
    ],
    ids=["empty frames", "a frame of exabytes", "a command of exabytes", "unknown flags", "a refusal"],
)
async def test_what_no_publisher_sends_is_cut_off_and_dialled_again(says):
    with hearing(lambda connected: connected.sendall(says)) as (peer, heard):
        await until(lambda: heard.cut_off and peer.connections >= 2)
        assert heard.messages == []
        assert heard.again >= 1


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n" * 9, b"\xff" + bytes(8) + b"\x7f\x01" + bytes(60), GREETING.replace(b"NULL", b"PLAI") + READY],
    ids=["another protocol", "an older version", "a password"],
)
async def test_who_does_not_speak_as_we_do_is_cut_off(greeting):
    with hearing(lambda connected: None, greeting=greeting) as (_, heard):
        await until(lambda: heard.cut_off)
        assert heard.messages == []


@pytest.mark.parametrize(("size", "most", "is_taken"), [(4096, 4096, True), (4097, 4096, False), (5 * LONG, 5 * LONG, True)])
async def test_a_message_is_taken_that_is_no_longer_than_the_operator_says(size, most, is_taken):
    sockets = Sockets(max_message_bytes=most)
    with hearing(lambda connected: connected.sendall(message(b"kv@a", bytes(size))), sockets) as (_, heard):
        await until(lambda: heard.messages or heard.cut_off)
        assert bool(heard.messages) == is_taken


@pytest.mark.parametrize("begun", [b"", GREETING, GREETING + READY + message(b"kv@", bytes(50))[:20]], ids=["nothing", "greeting", "half"])
async def test_what_does_not_end_is_given_up(monkeypatch, begun):
    monkeypatch.setattr(kv_zmtp, "MESSAGE_SECONDS", 0.0)
    monkeypatch.setattr(kv_sockets, "BEAT_SECONDS", 0.02)
    with hearing(lambda connected: None, greeting=begun) as (peer, heard):
        await until(lambda: heard.cut_off and peer.connections >= 2)


async def test_a_publisher_that_is_silent_though_it_is_asked_is_dialled_anew_and_is_not_blamed(monkeypatch):
    monkeypatch.setattr(kv_sockets, "BEAT_SECONDS", 0.02)
    with hearing(lambda connected: None) as (peer, heard):
        await until(lambda: peer.connections >= 2)
        assert heard.cut_off == 0
        await until(lambda: b"\x04PING" in peer.heard)


async def test_a_publisher_is_answered_where_it_asks_and_its_messages_come_in_order_however_they_are_cut():
    said = message(b"kv@a", b"1", b"x" * 300) + PING + frame(b"kv@a", 1) + PING + frame(b"2")

    def bytewise(connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(said)):
            connected.sendall(said[position : position + 1])

    with hearing(bytewise) as (peer, heard):
        await until(lambda: len(heard.messages) == 2)
        assert heard.messages == [[b"kv@a", b"1", b"x" * 300], [b"kv@a", b"2"]]
        await until(lambda: peer.heard.count(b"\x04PONGseen") == 2)


async def test_long_messages_wait_for_those_of_others_and_short_ones_do_not(monkeypatch):
    monkeypatch.setattr(kv_turns, "SEATS", 1)
    sockets, gate = Sockets(), threading.Event()

    def half(connected: socket.socket) -> None:
        connected.sendall(frame(b"kv@slow", 1) + b"\x02" + LONG.to_bytes(8, "big") + bytes(LONG - 1))
        gate.wait(20)
        connected.sendall(b"\0")

    with hearing(half, sockets) as (_, slow):
        await until(lambda: not sockets.seats.free, "the seat to be taken")
        with (
            hearing(lambda connected: connected.sendall(message(b"kv@long", bytes(LONG))), sockets) as (_, long),
            hearing(lambda connected: connected.sendall(message(b"kv@short", b"1")), sockets) as (_, short),
        ):
            await until(lambda: short.messages == [[b"kv@short", b"1"]])
            assert long.messages == slow.messages == []
            gate.set()
            await until(lambda: slow.messages)
            await until(lambda: long.messages)


async def test_publishers_dial_a_file_as_well_and_it_is_gone_afterwards(tmp_path):
    heard = Heard(topic="kv@")
    path = tmp_path / "events"
    assert heard.subscriber.bind(f"ipc://{path}") == f"ipc://{path}"
    publisher = Publisher(connect=f"ipc://{path}", pod="a")
    try:
        await publisher.found()
        publisher.send(0, payload=b"x")
        await until(lambda: heard.messages == [[b"kv@a@m", bytes(8), b"x"]])
    finally:
        publisher.close()
        heard.close()
    assert not path.exists()


async def test_publishers_that_dial_beyond_the_sockets_that_there_are_are_not_taken():
    heard = Heard(sockets=Sockets(2))
    address = heard.subscriber.bind("tcp://127.0.0.1:*")
    loop, where = asyncio.get_running_loop(), ("127.0.0.1", int(address.rpartition(":")[2]))

    async def greeted_at(dialling: socket.socket) -> bool:
        dialling.setblocking(False)
        await loop.sock_connect(dialling, where)
        return bool(await loop.sock_recv(dialling, 64))

    try:
        with socket.socket() as first, socket.socket() as second:
            assert await greeted_at(first)
            assert not await greeted_at(second)
        async with asyncio.timeout(10):
            while True:
                with socket.socket() as third:
                    if await greeted_at(third):
                        break
    finally:
        heard.close()


@pytest.mark.parametrize("address", ["", "tcp://", "tcp://a", "tcp://a:x", "tcp://a:70000", "inproc://a", "tcp://:1", "ipc://"])
async def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(OSError, match="Invalid argument") as refused:
        parts_of(address)
    assert refused.value.errno == errno.EINVAL


async def test_addresses_are_read_as_zeromq_writes_them():
    assert parts_of("tcp://[::1]:5557") == ("::1", "5557")
    assert parts_of("tcp://*:*") == ("*", "0")
    assert parts_of("ipc://@abstract") == ("\0abstract", "")
    assert parts_of("ipc:///run/a") == (str(Path("/run/a")), "")
