"""Protocol errors and floods: the code that answers each, and its counter."""

from __future__ import annotations

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import ACK, END_HEADERS, END_STREAM, ErrorCode, FrameType
from endpick.transport.h2.headers import encode
from endpick.transport.limits import Limits
from unit.transport.peer import Peer, continuation, data, frame, raw_headers


def gone(peer: Peer) -> ErrorCode:
    """The code of the final GOAWAY."""
    assert peer.connection.lifetime.closing
    goaway = peer.take()[-1]
    assert goaway.kind is FrameType.GOAWAY
    return goaway.code


@pytest.mark.parametrize(
    ("preface", "code", "counter"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.HTTP_1_1_REQUIRED, "http1_connections"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ErrorCode.PROTOCOL_ERROR, "tls_on_plain_text"),
        (b"\x00" * 100, ErrorCode.PROTOCOL_ERROR, "bad_prefaces"),
        (b"PRI * HTTP/2.0\r\n\r\nXX", ErrorCode.PROTOCOL_ERROR, "bad_prefaces"),
    ],
)
def test_other_protocols_are_named_and_counted(preface, code, counter):
    peer = Peer(greet=False)
    for byte in preface:
        peer.send(bytes([byte]))
    assert gone(peer) is code
    assert getattr(peer.counters, counter) == 1
    assert peer.counters.connection_errors == 1


def test_preface_may_arrive_byte_by_byte():
    peer = Peer(greet=False)
    for byte in frames.PREFACE + frames.settings({}):
        peer.send(bytes([byte]))
    assert [found.kind for found in peer.take()][-1] is FrameType.SETTINGS
    peer.open(1)
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]


@pytest.mark.parametrize("sent", [b"PRI * HT", frames.PREFACE])
def test_incomplete_handshake_times_out(sent):
    peer = Peer(Limits(handshake_seconds=10), greet=False)
    peer.send(sent)
    peer.tick(9)
    assert not peer.connection.lifetime.closing
    peer.tick(2)
    assert gone(peer) is ErrorCode.SETTINGS_TIMEOUT
    assert peer.counters.handshake_timeouts == 1


def test_request_before_settings_is_an_error():
    peer = Peer(greet=False)
    peer.send(frames.PREFACE + peer.headers(1))
    assert gone(peer) is ErrorCode.PROTOCOL_ERROR


def test_streams_beyond_the_maximum_are_refused():
    peer = Peer(Limits(max_concurrent_streams=2))
    for stream in (1, 3, 5):
        peer.open(stream)
    [reset] = peer.take()
    assert (reset.stream, reset.code) == (5, ErrorCode.REFUSED_STREAM)
    assert peer.counters.streams_refused == 1
    peer.message(1, b"finish")
    peer.take()
    peer.open(7)
    peer.message(7, b"room again")
    assert peer.replies(7) == [b"room again"]


def test_unanswered_resets_exhaust_a_budget_that_refills():
    peer = Peer()

    def reset(count: int) -> None:
        first = peer.connection.streams.last_id + 2
        for stream in range(first | 1, (first | 1) + 2 * count, 2):
            peer.open(stream)
            peer.send(frames.rst_stream(stream, ErrorCode.CANCEL))

    reset(8192)
    assert not peer.connection.lifetime.closing
    peer.now += 1
    reset(500)
    assert not peer.connection.lifetime.closing
    reset(1)
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.reset_floods == 1
    assert all(session.causes == [CloseCause.RESET] for session in peer.sessions)


FLOODS = [
    ("PING", frames.ping(b"12345678", ack=False), 1000),
    ("SETTINGS", frames.settings({}), 100),
    ("WINDOW_UPDATE", frames.window_update(0, 1), 20_000),
    ("PRIORITY", frame(FrameType.PRIORITY, 0, 99, b"\0\0\0\0\1"), 20_000),
    ("unknown", frame(0xFA, 0, 0, b"unknown"), 20_000),
    ("RST_STREAM of a closed stream", frames.rst_stream(1, ErrorCode.CANCEL), 20_000),
    ("empty DATA", data(3, b""), 100),
]


@pytest.mark.parametrize(("flood", "most"), [flood[1:] for flood in FLOODS], ids=[flood[0] for flood in FLOODS])
def test_control_frame_flood_closes_the_connection(flood, most):
    peer = Peer()
    peer.open(1, end=True)
    peer.open(3)
    peer.send(flood * (most // 2))
    assert not peer.connection.lifetime.closing
    peer.send(flood * (most // 2 + 1))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert (peer.counters.frame_floods, peer.counters.streams_active) == (1, 0)


def test_header_block_in_too_many_frames_is_a_flood():
    peer = Peer()
    peer.send(frame(FrameType.HEADERS, 0, 1, b"") + continuation(1, b"") * 16)
    assert not peer.connection.lifetime.closing
    peer.send(continuation(1, b""))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_floods == 1


@pytest.mark.parametrize("split", [False, True])
def test_too_long_header_block_is_a_flood(split):
    peer = Peer(Limits(max_header_bytes=1000))
    block = encode([(b"x", b"y" * 1000)])
    if split:
        peer.send(frame(FrameType.HEADERS, 0, 1, block[:600]) + continuation(1, block[600:], end=True))
    else:
        peer.send(frames.headers(1, block, end_stream=False))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_floods == 1


def test_incomplete_header_block_times_out():
    peer = Peer()
    peer.send(frame(FrameType.HEADERS, 0, 1, b""))
    peer.tick(11)
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_timeouts == 1


def test_header_block_may_arrive_in_pieces():
    peer = Peer()
    whole = peer.headers(1)[9:]
    peer.send(frame(FrameType.HEADERS, 0, 1, whole[:10]) + continuation(1, whole[10:20]) + continuation(1, whole[20:], end=True))
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]


def test_frame_within_a_header_block_is_an_error():
    peer = Peer()
    peer.send(frame(FrameType.HEADERS, 0, 1, b"") + frames.ping(b"12345678", ack=False))
    assert gone(peer) is ErrorCode.PROTOCOL_ERROR


ERRORS = [
    ("DATA on stream 0", data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("DATA on an idle stream", data(9, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("HEADERS on stream 0", frames.headers(0, b"", end_stream=False), ErrorCode.PROTOCOL_ERROR),
    ("HEADERS on an even stream", Peer().headers(2), ErrorCode.PROTOCOL_ERROR),
    ("CONTINUATION alone", continuation(1, b""), ErrorCode.PROTOCOL_ERROR),
    ("PUSH_PROMISE", frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), ErrorCode.PROTOCOL_ERROR),
    ("SETTINGS on a stream", frame(FrameType.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("SETTINGS acknowledgement with values", frame(FrameType.SETTINGS, ACK, 0, b"\0" * 6), ErrorCode.FRAME_SIZE_ERROR),
    ("SETTINGS of five bytes", frame(FrameType.SETTINGS, 0, 0, b"\0" * 5), ErrorCode.FRAME_SIZE_ERROR),
    ("a window of 2^31", frames.settings({4: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    ("a frame size of 1", frames.settings({5: 1}), ErrorCode.PROTOCOL_ERROR),
    ("push 2", frames.settings({2: 2}), ErrorCode.PROTOCOL_ERROR),
    ("PING of seven bytes", frame(FrameType.PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    ("PING on a stream", frame(FrameType.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM on an idle stream", frames.rst_stream(9, 0), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM of three bytes", frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE on an idle stream", frames.window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE by nothing", frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    ("GOAWAY on a stream", frame(FrameType.GOAWAY, 0, 1, b"\0" * 8), ErrorCode.PROTOCOL_ERROR),
    ("GOAWAY of seven bytes", frame(FrameType.GOAWAY, 0, 0, b"\0" * 7), ErrorCode.FRAME_SIZE_ERROR),
    ("PRIORITY on stream 0", frame(FrameType.PRIORITY, 0, 0, b"\0" * 5), ErrorCode.PROTOCOL_ERROR),
    ("a frame that is too long", frame(FrameType.DATA, 0, 1, b"")[:0] + b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
    ("padding beyond the frame", frame(FrameType.DATA, 8, 1, b"\x05ab"), ErrorCode.PROTOCOL_ERROR),
    ("padded, without a length", frame(FrameType.DATA, 8, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
    ("priority without room", frame(FrameType.HEADERS, 0x24, 3, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(("sent", "code"), [error[1:] for error in ERRORS], ids=[error[0] for error in ERRORS])
def test_connection_error_ends_all_streams(sent, code):
    peer = Peer()
    peer.open(1)
    peer.send(sent)
    assert gone(peer) is code
    assert peer.sessions[0].causes == [CloseCause.DISCONNECT]
    assert (peer.counters.connection_errors, peer.counters.streams_active) == (1, 0)
    peer.message(1, b"too late")
    assert peer.take() == []


STREAM_ERRORS = [
    ("PRIORITY of four bytes", frame(FrameType.PRIORITY, 0, 3, b"\0" * 4), ErrorCode.FRAME_SIZE_ERROR),
    ("a dependence on itself", frame(FrameType.PRIORITY, 0, 3, b"\0\0\0\3\0"), ErrorCode.PROTOCOL_ERROR),
    ("a second header block without an end", Peer().headers(3), ErrorCode.PROTOCOL_ERROR),
    ("pseudo-headers in trailers", raw_headers(3, [(":path", "/")], end=True), ErrorCode.PROTOCOL_ERROR),
    ("malformed headers", Peer().headers(5, te="gzip"), ErrorCode.PROTOCOL_ERROR),
    ("a promise of a body that does not come", Peer().headers(5, content_length="5", end=True), ErrorCode.PROTOCOL_ERROR),
    ("a stream window beyond counting", frames.window_update(3, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ("a stream WINDOW_UPDATE by nothing", frames.window_update(3, 0), ErrorCode.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("sent", "code"), [error[1:] for error in STREAM_ERRORS], ids=[error[0] for error in STREAM_ERRORS])
def test_stream_error_leaves_other_streams_alone(sent, code):
    peer = Peer()
    peer.open(1)
    peer.open(3)
    peer.take()
    peer.send(sent)
    [reset] = peer.take()
    assert (reset.kind, reset.code) == (FrameType.RST_STREAM, code)
    assert peer.counters.stream_errors == 1
    peer.message(1, b"unharmed")
    assert peer.replies(1) == [b"unharmed"]


def test_wrong_content_length_resets_the_stream():
    peer = Peer()
    peer.open(1, content_length="5")
    peer.send(data(1, b"four", end=True))
    assert peer.take()[-1].code is ErrorCode.PROTOCOL_ERROR


def test_data_after_the_end_is_ignored_only_after_our_reset():
    peer = Peer()
    peer.open(1, end=True)
    peer.open(3)
    peer.message(3, b"finish")
    peer.take()
    peer.send(data(3, b"x"))
    assert peer.take() == []
    peer.send(data(1, b"x"))
    assert peer.take()[0].code is ErrorCode.STREAM_CLOSED


def test_ignored_headers_still_update_the_hpack_table():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"finish")
    peer.take()
    indexed = b"\x40" + bytes([4]) + b"x-id" + bytes([3]) + b"abc"
    peer.send(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, indexed))
    assert peer.take() == []
    peer.send(frame(FrameType.HEADERS, END_HEADERS, 3, peer.headers(3)[9:] + b"\xbe"))
    peer.message(3, b"hi")
    assert peer.replies(3) == [b"hi"]


def test_stream_ids_must_increase():
    peer = Peer()
    peer.open(5)
    peer.open(3)
    assert gone(peer) is ErrorCode.PROTOCOL_ERROR


def test_closed_streams_are_forgotten():
    peer = Peer()
    for stream in range(1, 10_001, 2):
        peer.open(stream)
        peer.message(stream, b"finish")
    assert 768 <= len(peer.connection.streams.closed) <= 1024
    assert len(peer.connection.streams.open) == 0


def test_trailers_of_a_forgotten_stream_reset_it():
    peer = Peer()
    for stream in range(1, 4001, 2):
        peer.open(stream)
        peer.message(stream, b"finish")
    peer.take()
    peer.send(raw_headers(5, [("x-late", "1")], end=True))
    [reset] = peer.take()
    assert (reset.stream, reset.code) == (5, ErrorCode.STREAM_CLOSED)
    assert not peer.connection.lifetime.closing


def test_stream_error_flood_closes_the_connection():
    peer = Peer()
    for stream in range(1, 2001, 2):
        peer.open(stream, te="gzip")
    assert not peer.connection.lifetime.closing
    peer.open(2001, te="gzip")
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert (peer.counters.stream_error_floods, peer.counters.stream_errors) == (1, 1001)


def test_server_announces_its_limits():
    settings, update = Peer(Limits(max_concurrent_streams=7, max_header_bytes=9_000), greet=False).take()
    announced = ((3, 7), (4, frames.STREAM_WINDOW_BYTES), (5, frames.MAX_FRAME_BYTES), (6, 9_000))
    assert settings.payload == b"".join(identifier.to_bytes(2, "big") + value.to_bytes(4, "big") for identifier, value in announced)
    assert int.from_bytes(update.payload, "big") == frames.CONNECTION_WINDOW_BYTES - 65_535
