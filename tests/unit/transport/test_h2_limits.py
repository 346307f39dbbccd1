"""What a client may not do, what it costs the client, and which counter tells."""

from __future__ import annotations

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import ACK, END_HEADERS, END_STREAM, FrameType
from endpick.transport.h2.hpack import encode
from endpick.transport.limits import Limits
from unit.transport.peer import PATH, Peer, continuation, data, frame, raw_headers


def gone(peer: Peer) -> ErrorCode:
    """The code of the GOAWAY that ended the connection."""
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
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_client_that_does_not_speak_http2_is_told_and_counted(preface, code, counter, cut):
    peer = Peer(greet=False)
    for start in range(0, len(preface), cut):
        peer.send(preface[start : start + cut])
    assert gone(peer) is code
    assert getattr(peer.counters, counter) == 1
    assert peer.counters.connection_errors == 1


def test_a_preface_may_come_byte_by_byte():
    peer = Peer(greet=False)
    for byte in frames.PREFACE + frames.settings({}):
        peer.send(bytes([byte]))
    assert [found.kind for found in peer.take()][-1] is FrameType.SETTINGS
    peer.open(1)
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]


@pytest.mark.parametrize("said", [b"", b"PRI * HT", frames.PREFACE])
def test_a_client_that_does_not_finish_its_preface_is_dropped(said):
    peer = Peer(Limits(handshake_seconds=10), greet=False)
    peer.send(said)
    peer.tick(9)
    assert not peer.connection.lifetime.closing
    peer.tick(2)
    assert gone(peer) is ErrorCode.SETTINGS_TIMEOUT
    assert peer.counters.handshake_timeouts == 1


def test_a_request_before_settings_is_an_error():
    peer = Peer(greet=False)
    peer.send(frames.PREFACE + peer.headers(1))
    assert gone(peer) is ErrorCode.PROTOCOL_ERROR


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on():
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


def test_resets_of_streams_never_answered_exhaust_a_budget_that_refills():
    peer = Peer(Limits(unanswered_resets_burst=10, unanswered_resets_per_second=1))
    for stream in range(1, 21, 2):
        peer.open(stream)
        peer.send(frames.rst_stream(stream, ErrorCode.CANCEL))
    assert not peer.connection.lifetime.closing
    peer.now += 1
    peer.open(21)
    peer.send(frames.rst_stream(21, ErrorCode.CANCEL))
    assert not peer.connection.lifetime.closing
    peer.open(23)
    peer.send(frames.rst_stream(23, ErrorCode.CANCEL))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.reset_floods == 1
    assert [session.causes for session in peer.sessions] == [[CloseCause.RESET]] * 12


FLOODS = [
    ({"pings_burst": 5, "pings_per_second": 0}, frames.ping(b"12345678", ack=False), "ping_floods"),
    ({"pings_burst": 5, "pings_per_second": 0}, frames.ping(b"12345678", ack=True), "ping_floods"),
    ({"settings_burst": 6, "settings_per_second": 0}, frames.settings({}), "settings_floods"),
    ({"control_frames_burst": 6, "control_frames_per_second": 0}, frames.SETTINGS_ACK, "control_frame_floods"),
    ({"control_frames_burst": 6, "control_frames_per_second": 0}, frames.window_update(0, 1), "control_frame_floods"),
    ({"control_frames_burst": 6, "control_frames_per_second": 0}, frame(FrameType.PRIORITY, 0, 99, b"\0\0\0\0\1"), "control_frame_floods"),
    ({"control_frames_burst": 6, "control_frames_per_second": 0}, frame(0xFA, 0, 0, b"unknown"), "control_frame_floods"),
    ({"control_frames_burst": 6, "control_frames_per_second": 0}, frames.rst_stream(1, ErrorCode.CANCEL), "control_frame_floods"),
    ({"empty_frames_burst": 5, "empty_frames_per_second": 0}, data(3, b""), "empty_frame_floods"),
]


@pytest.mark.parametrize(("limits", "flood", "counter"), FLOODS, ids=[f"{counter}-{sent[3]:#x}" for _, sent, counter in FLOODS])
def test_each_flood_is_stopped_at_its_budget(limits, flood, counter):
    peer = Peer(Limits(**limits))
    peer.open(1, end=True)
    peer.open(3)
    for _ in range(5):
        peer.send(flood)
    assert not peer.connection.lifetime.closing
    peer.send(flood)
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert getattr(peer.counters, counter) == 1
    assert peer.counters.streams_active == 0


def test_a_header_block_in_too_many_frames_is_a_flood():
    peer = Peer(Limits(max_continuation_frames=3))
    peer.send(frame(FrameType.HEADERS, 0, 1, b""))
    for _ in range(3):
        peer.send(continuation(1, b""))
    assert not peer.connection.lifetime.closing
    peer.send(continuation(1, b""))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_floods == 1


@pytest.mark.parametrize("split", [False, True])
def test_a_header_block_that_is_too_long_is_a_flood(split):
    peer = Peer(Limits(max_header_bytes=1000))
    block = encode([(b"x", b"y" * 1000)])
    if split:
        peer.send(frame(FrameType.HEADERS, 0, 1, block[:600]) + continuation(1, block[600:], end=True))
    else:
        peer.send(frames.headers(1, block, end_stream=False))
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_floods == 1


def test_a_header_block_without_an_end_is_not_waited_for():
    peer = Peer(Limits(header_block_seconds=10))
    peer.send(frame(FrameType.HEADERS, 0, 1, b""))
    peer.tick(11)
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.header_timeouts == 1


def test_headers_may_come_in_pieces():
    peer = Peer()
    whole = peer.headers(1)[9:]
    peer.send(frame(FrameType.HEADERS, 0, 1, whole[:10]) + continuation(1, whole[10:20]) + continuation(1, whole[20:], end=True))
    peer.message(1, b"hi")
    assert peer.replies(1) == [b"hi"]


def test_another_frame_within_a_header_block_is_an_error():
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
def test_an_error_of_the_connection_ends_all_its_streams(sent, code):
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
def test_an_error_of_a_stream_leaves_the_others_alone(sent, code):
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


def test_a_body_of_another_length_than_promised_is_an_error_of_its_stream():
    peer = Peer()
    peer.open(1, content_length="5")
    peer.send(data(1, b"four", end=True))
    assert peer.take()[-1].code is ErrorCode.PROTOCOL_ERROR


def test_data_after_the_end_is_an_error_unless_the_client_cannot_know():
    peer = Peer()
    peer.open(1, end=True)
    peer.open(3)
    peer.message(3, b"finish")
    peer.take()
    peer.send(data(3, b"x"))
    assert peer.take() == []
    peer.send(data(1, b"x"))
    assert peer.take()[0].code is ErrorCode.STREAM_CLOSED


def test_headers_on_a_stream_that_we_ended_keep_the_table_in_step():
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


def test_streams_may_not_be_opened_in_reverse():
    peer = Peer()
    peer.open(5)
    peer.open(3)
    assert gone(peer) is ErrorCode.PROTOCOL_ERROR


def test_a_long_life_remembers_few_of_its_streams():
    peer = Peer()
    for stream in range(1, 10_001, 2):
        peer.open(stream)
        peer.message(stream, b"finish")
    assert 768 <= len(peer.connection.streams.closed) <= 1024
    assert len(peer.connection.streams.open) == 0


def test_trailers_of_a_stream_too_old_to_remember_cost_that_stream_only():
    peer = Peer()
    for stream in range(1, 4001, 2):
        peer.open(stream)
        peer.message(stream, b"finish")
    peer.take()
    peer.send(raw_headers(5, [("x-late", "1")], end=True))
    [reset] = peer.take()
    assert (reset.stream, reset.code) == (5, ErrorCode.STREAM_CLOSED)
    assert not peer.connection.lifetime.closing


def test_a_client_whose_every_stream_is_an_error_is_cut_off():
    peer = Peer(Limits(stream_errors_burst=5, stream_errors_per_second=0))
    for stream in range(1, 11, 2):
        peer.open(stream, te="gzip")
    assert not peer.connection.lifetime.closing
    peer.open(11, te="gzip")
    assert gone(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert (peer.counters.stream_error_floods, peer.counters.stream_errors) == (1, 6)


def test_what_is_announced_is_what_is_enforced():
    peer = Peer(Limits(max_concurrent_streams=7, stream_window_bytes=70_000, max_frame_bytes=20_000, max_header_bytes=9_000), greet=False)
    settings, update = peer.take()
    assert settings.payload == b"".join(
        identifier.to_bytes(2, "big") + value.to_bytes(4, "big") for identifier, value in ((3, 7), (4, 70_000), (5, 20_000), (6, 9_000))
    )
    assert int.from_bytes(update.payload, "big") == Limits().connection_window_bytes - 65_535
    assert PATH
