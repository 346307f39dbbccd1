"""How connections age, go quiet and drain."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.address import ListenSettings
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import MAX_STREAM_ID, FrameType
from endpick.transport.h2.protocol import SocketConnection
from endpick.transport.h2.server import H2Server
from endpick.transport.limits import Limits
from endpick.transport.methods import Method
from unit.transport.peer import ENDLESS_PATH, PATH, REQUEST, EchoSession, Peer, data, frame, raw_headers

INITIAL_WINDOW = 4
REQUEST_FIELDS = tuple(REQUEST.items())


def last_stream(goaway) -> int:
    return int.from_bytes(goaway.payload[:4], "big")


def pong(peer: Peer) -> None:
    """Answer the PINGs that came."""
    for found in peer.take():
        if found.kind is FrameType.PING:
            peer.send(frames.ping(found.payload, ack=True))


def test_a_drain_says_so_twice_and_serves_what_was_under_way():
    peer = Peer()
    peer.open(1)
    peer.connection.drain(peer.now, 30)
    goaway, ping = peer.take()
    assert (last_stream(goaway), goaway.code) == (MAX_STREAM_ID, ErrorCode.NO_ERROR)
    peer.open(3)
    peer.message(3, b"was on its way")
    assert peer.replies(3) == [b"was on its way"]
    peer.send(frames.ping(ping.payload, ack=True))
    [goaway] = peer.take()
    assert last_stream(goaway) == 3
    peer.open(5)
    assert peer.take()[0].code is ErrorCode.REFUSED_STREAM
    assert peer.counters.streams_refused == 1
    for stream in (1, 3):
        assert not peer.connection.lifetime.closing
        peer.message(stream, b"finish")
    assert peer.connection.lifetime.closing
    assert [session.causes for session in peer.sessions] == [[CloseCause.END]] * 2


def test_a_stream_that_comes_after_the_last_goaway_is_refused_with_all_that_belongs_to_it_and_costs_no_other():
    peer = Peer()
    peer.open(1)
    peer.connection.drain(peer.now, 30)
    peer.tick(1.5)
    assert last_stream(peer.take()[-1]) == 1
    peer.open(3)
    peer.message(3, b"sent in one piece with the headers")
    peer.send(frames.window_update(3, 1) + frames.rst_stream(3, ErrorCode.CANCEL))
    assert [(found.kind, found.stream, found.code) for found in peer.take()] == [(FrameType.RST_STREAM, 3, ErrorCode.REFUSED_STREAM)]
    peer.message(1, b"still served")
    assert peer.replies(1) == [b"still served"]


def test_a_client_that_does_not_answer_the_drain_ping_is_not_waited_for():
    peer = Peer()
    peer.connection.drain(peer.now, 30)
    peer.tick(0.5)
    assert not peer.connection.lifetime.closing
    peer.tick(1)
    assert peer.connection.lifetime.closing


def test_streams_that_outlast_the_grace_end_as_unavailable():
    peer = Peer()
    peer.open(1)
    peer.connection.drain(peer.now, 5)
    peer.tick(6)
    trailers = next(found for found in peer.take() if found.kind is FrameType.HEADERS)
    assert trailers.headers["grpc-status"] == "14"
    assert peer.sessions[0].causes == [CloseCause.DRAIN]
    assert peer.connection.lifetime.closing


def test_a_connection_drains_when_it_reaches_its_age():
    peer = Peer(Limits(max_connection_age_seconds=100, max_connection_age_grace_seconds=10, keepalive_idle_seconds=1000))
    peer.open(1)
    peer.tick(94)
    assert peer.take() == []
    peer.tick(12)
    assert peer.take()[0].kind is FrameType.GOAWAY
    assert peer.counters.aged_connections == 1
    peer.tick(11)
    assert peer.connection.lifetime.closing


def test_a_client_that_does_not_take_its_replies_outlives_neither_age_nor_grace():
    peer = Peer(Limits(max_connection_age_seconds=100, max_connection_age_grace_seconds=10), settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"hi")
    peer.open(3, content_type="text/plain", end=True)
    peer.tick(106)
    peer.tick(10)
    assert not peer.connection.lifetime.closing, "the streams have just been told"
    peer.tick(1.5)
    assert peer.connection.lifetime.closing
    peer.connection.lost()
    assert (peer.counters.streams_active, peer.memory.held_bytes) == (0, 0)
    assert [session.causes for session in peer.sessions] == [[CloseCause.DRAIN]]


def test_a_connection_without_streams_drains_after_its_idle_time():
    peer = Peer(Limits(max_connection_idle_seconds=50, keepalive_idle_seconds=1000))
    peer.open(1)
    peer.tick(60)
    assert not peer.take()
    peer.message(1, b"finish")
    peer.take()
    peer.tick(51)
    assert peer.counters.idle_connections == 1
    peer.tick(2)
    assert peer.connection.lifetime.closing


def test_a_silent_client_is_asked_and_then_dropped():
    peer = Peer(Limits(keepalive_idle_seconds=60, keepalive_timeout_seconds=20))
    peer.tick(61)
    pong(peer)
    peer.tick(30)
    assert not peer.connection.lifetime.closing
    peer.tick(61)
    assert [found.kind for found in peer.take()] == [FrameType.PING]
    peer.tick(21)
    assert peer.connection.lifetime.closing
    assert peer.counters.keepalive_timeouts == 1


def test_a_stream_on_which_nothing_arrives_is_cancelled_but_not_an_endless_one():
    peer = Peer(Limits(max_stream_idle_seconds=100, keepalive_idle_seconds=10_000))
    peer.open(1)
    peer.open(3)
    peer.open(5, path=ENDLESS_PATH)
    peer.tick(60)
    peer.message(3, b"alive")
    peer.take()
    peer.tick(60)
    [reset] = peer.take()
    assert (reset.kind, reset.stream, reset.code) == (FrameType.RST_STREAM, 1, ErrorCode.CANCEL)
    assert (peer.counters.idle_streams, peer.counters.streams_active) == (1, 2)


def test_streams_that_say_nothing_for_seconds_are_no_reason_to_stay():
    peer = Peer()
    peer.open(1)
    peer.open(3)
    for _ in range(2):
        peer.tick(3)
        peer.send(frames.ping(b"is there", ack=False))
    assert (peer.connection.idle_since(), peer.connection.is_silent()) == (peer.now, True)
    peer.open(5)
    assert peer.connection.idle_since() is None, "what has come since may be a request"
    peer.tick(6)
    assert peer.connection.is_silent()
    peer.message(3, b"late")
    assert peer.connection.idle_since() is None
    peer.tick(6)
    assert (peer.connection.idle_since(), peer.connection.is_silent()) == (None, False)


def test_half_a_message_is_a_reason_to_stay():
    peer = Peer()
    peer.open(1)
    peer.send(data(1, bytes(3)))
    for _ in range(3):
        peer.tick(6)
        assert peer.connection.idle_since() is None


def test_the_goaway_of_a_client_lets_its_streams_end():
    peer = Peer()
    peer.open(1)
    peer.send(frames.goaway(0, ErrorCode.NO_ERROR) + frame(FrameType.PING, 0, 0, b"12345678"))
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]


class Socket:
    """Takes everything."""

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = close


def server() -> H2Server:
    return H2Server(
        ListenSettings(limits=Limits(unanswered_resets_burst=10_000, read_bytes_per_turn=1 << 22, read_seconds_per_turn=60.0)),
        {PATH: Method(EchoSession)},
    )


@pytest.mark.asyncio
async def test_a_connection_that_is_gone_leaves_nothing_to_the_garbage_collector():
    home = server()
    streams = [raw_headers(stream, REQUEST_FIELDS) + frames.rst_stream(stream, ErrorCode.CANCEL) for stream in range(1, 2500, 2)]
    data = bytearray(frames.PREFACE + frames.settings({}) + b"".join(streams) + frames.headers(2501, b"\xff", end_stream=False))

    def live() -> None:
        connection = SocketConnection(home)
        connection.connection_made(Socket())
        connection.data_received(bytes(data))
        connection.connection_lost(None)

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        live()  # Python keeps some of what it frees for later
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            live()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert home.counters.connections_closed == 11
    assert (after - before) / 10 < 1024
