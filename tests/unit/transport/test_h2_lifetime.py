"""Keepalive, age and graceful shutdown of a connection."""

from __future__ import annotations

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.control import MAX_IDLE_SECONDS
from endpick.transport.h2.frames import MAX_STREAM_ID, ErrorCode, FrameType
from endpick.transport.limits import Limits
from unit.transport.peer import Peer, frame

INITIAL_WINDOW = 4


def last_stream(goaway) -> int:
    return int.from_bytes(goaway.payload[:4], "big")


def pong(peer: Peer) -> None:
    """Answer the PINGs that came."""
    for found in peer.take():
        if found.kind is FrameType.PING:
            peer.send(frames.ping(found.payload, ack=True))


def test_drain_sends_two_goaways_and_serves_open_streams():
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


def test_stream_after_the_last_goaway_is_refused():
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


def test_drain_does_not_wait_long_for_its_ping():
    peer = Peer()
    peer.connection.drain(peer.now, 30)
    peer.tick(0.5)
    assert not peer.connection.lifetime.closing
    peer.tick(1)
    assert peer.connection.lifetime.closing


def test_streams_beyond_the_grace_end_as_unavailable():
    peer = Peer()
    peer.open(1)
    peer.connection.drain(peer.now, 5)
    peer.tick(6)
    trailers = next(found for found in peer.take() if found.kind is FrameType.HEADERS)
    assert trailers.headers["grpc-status"] == "14"
    assert peer.sessions[0].causes == [CloseCause.DRAIN]
    assert peer.connection.lifetime.closing


def test_connection_drains_at_its_maximum_age():
    peer = Peer(Limits(max_connection_age_seconds=100, max_connection_age_grace_seconds=10, keepalive_idle_seconds=1000))
    peer.open(1)
    peer.tick(94)
    assert peer.take() == []
    peer.tick(12)
    assert peer.take()[0].kind is FrameType.GOAWAY
    assert peer.counters.aged_connections == 1
    peer.tick(11)
    assert peer.connection.lifetime.closing


def test_grace_ends_connections_with_unread_replies():
    peer = Peer(Limits(max_connection_age_seconds=100, max_connection_age_grace_seconds=10), settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"hi")
    peer.open(3, content_type="text/plain", end=True)
    peer.tick(106)
    peer.tick(10)
    assert not peer.connection.lifetime.closing, "the last replies get a second"
    peer.tick(1.5)
    assert peer.connection.lifetime.closing
    peer.connection.lost()
    assert peer.counters.streams_active == 0
    assert [session.causes for session in peer.sessions] == [[CloseCause.DRAIN]]


def test_idle_connection_drains():
    peer = Peer(Limits(keepalive_idle_seconds=10_000))
    peer.open(1)
    peer.tick(MAX_IDLE_SECONDS + 1)
    assert not peer.take()
    peer.message(1, b"finish")
    peer.take()
    peer.tick(MAX_IDLE_SECONDS + 1)
    assert peer.counters.idle_connections == 1
    peer.tick(2)
    assert peer.connection.lifetime.closing


def test_silent_client_gets_a_ping_and_is_dropped():
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


def test_goaway_of_the_client_lets_its_streams_end():
    peer = Peer()
    peer.open(1)
    peer.send(frames.goaway(0, ErrorCode.NO_ERROR) + frame(FrameType.PING, 0, 0, b"12345678"))
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]
