"""Streams: messages to the session, replies to the client, and the end of each."""

from __future__ import annotations

import pytest

from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import END_STREAM, PADDED, ErrorCode, FrameType
from endpick.transport.h2.stream import MESSAGE_HEAD
from endpick.transport.limits import Limits
from unit.transport.peer import ENDLESS_PATH, Peer, data, frame, raw_headers


def test_half_close_ends_the_stream_with_ok():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"hello", end=True)
    headers, reply, trailers = peer.take()
    assert headers.headers == {":status": "200", "content-type": "application/grpc"}
    assert reply.payload == MESSAGE_HEAD.pack(0, 5) + b"hello"
    assert (trailers.headers, trailers.ends_stream) == ({"grpc-status": "0"}, True)
    assert peer.sessions[0].causes == [CloseCause.END]
    assert peer.counters.streams_active == 0


def test_messages_may_be_cut_by_frames():
    peer = Peer()
    peer.open(1)
    wire = b"".join(MESSAGE_HEAD.pack(0, len(message)) + message for message in (b"one", b"two" * 100, b"", b"three"))
    for at in range(0, len(wire), 7):
        peer.send(data(1, wire[at : at + 7]))
    assert peer.sessions[0].received == [b"one", b"two" * 100, b"", b"three"]


def test_padding_is_removed():
    peer = Peer()
    peer.open(1)
    peer.send(frame(FrameType.DATA, PADDED, 1, b"\x04" + MESSAGE_HEAD.pack(0, 2) + b"ab" + b"\0" * 4))
    assert peer.replies(1) == [b"ab"]


def test_reset_of_an_answered_stream_is_a_normal_end():
    peer = Peer()
    for stream in range(1, 20_001, 2):
        peer.open(stream)
        peer.message(stream, b"x")
        peer.send(frames.rst_stream(stream, ErrorCode.NO_ERROR))
    assert [session.causes for session in peer.sessions] == [[CloseCause.RESET]] * 10_000
    assert not peer.connection.lifetime.closing
    assert (peer.counters.streams_reset_by_peer, peer.counters.reset_floods, peer.counters.stream_errors) == (10_000, 0, 0)


def test_finished_session_resets_the_rest_of_the_request():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"finish")
    kinds = [(frame.kind, frame.ends_stream) for frame in peer.take()]
    assert kinds == [
        (FrameType.HEADERS, False),
        (FrameType.DATA, False),
        (FrameType.HEADERS, True),
        (FrameType.RST_STREAM, False),
    ]
    assert peer.sessions[0].causes == [CloseCause.END]
    peer.message(1, b"late")
    assert peer.take() == []
    assert peer.sessions[0].received == [b"finish"]


def test_protocol_error_becomes_the_grpc_status():
    peer = Peer()
    peer.open(1)
    peer.sessions[0].receive = raising(ProtocolError(GrpcStatus.INVALID_ARGUMENT, "out of order"))
    peer.message(1, b"x")
    [trailers, reset] = peer.take()
    assert trailers.headers == {":status": "200", "content-type": "application/grpc", "grpc-status": "3", "grpc-message": "out of order"}
    assert reset.kind is FrameType.RST_STREAM
    assert peer.sessions[0].causes == [CloseCause.ERROR]
    assert (peer.counters.session_refusals, peer.counters.session_faults) == (1, 0)


def test_failing_session_ends_its_own_stream_only(caplog):
    peer = Peer()
    peer.open(1)
    peer.open(3)
    peer.sessions[0].receive = raising(ValueError("bug"))
    peer.message(1, b"x")
    assert peer.take()[0].headers["grpc-status"] == "13"
    assert "ValueError: bug" in caplog.text
    peer.message(3, b"still here")
    assert peer.replies(3) == [b"still here"]
    assert peer.counters.session_faults == 1


def test_session_failing_in_close_is_counted(caplog):
    peer = Peer()
    peer.open(1)
    peer.sessions[0].close = raising(ValueError("bug"))
    peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    assert peer.counters.session_faults == 1
    assert peer.counters.streams_active == 0


def test_waiting_session_gets_messages_and_its_result():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later")
    peer.message(1, b"meanwhile")
    assert len(peer.waiting) == 1, "one await at a time"
    assert peer.sessions[0].received == [b"later", b"meanwhile"]
    peer.connection.streams.resume(peer.waiting[0], 42)
    assert peer.replies(1) == [b"resumed:42"]


def test_half_close_while_waiting_ends_after_the_reply():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later", end=True)
    assert peer.take() == []
    peer.connection.streams.resume(peer.waiting[0], "x")
    assert peer.take()[-1].headers == {"grpc-status": "0"}
    assert peer.sessions[0].causes == [CloseCause.END]


def test_awaited_exception_goes_to_the_session():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later")
    peer.connection.streams.fail(peer.waiting[0], RuntimeError("no tokenizer"))
    assert peer.replies(1) == [b"failed:no tokenizer"]


@pytest.mark.parametrize("how", ["reset", "disconnect"])
def test_end_of_a_waiting_stream_cancels_its_task(how):
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later")
    if how == "reset":
        peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    else:
        peer.connection.lost()
    assert peer.tasks[0].cancelled
    assert peer.sessions[0].causes == [CloseCause(how)]
    peer.connection.streams.resume(peer.waiting[0], "too late")
    assert peer.take() == []


def test_client_trailers_end_the_request():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"x")
    peer.send(raw_headers(1, [("x-checksum", "1")], end=True))
    assert peer.take()[-1].headers == {"grpc-status": "0"}
    assert peer.sessions[0].causes == [CloseCause.END]


def test_unknown_method_is_unimplemented():
    peer = Peer()
    peer.open(1, path="/no.Such/Method")
    assert peer.take()[0].headers["grpc-status"] == "12"
    assert peer.counters.unknown_methods == 1


@pytest.mark.parametrize(
    ("changes", "status"), [({"method": "GET"}, "405"), ({"content_type": "text/html"}, "415"), ({"content_type": None}, "415")]
)
def test_request_that_is_not_grpc_gets_a_plain_answer(changes, status):
    peer = Peer()
    peer.open(1, **changes)
    peer.send(data(1, b"anything"))
    assert peer.take() == []
    peer.send(data(1, b"", end=True))
    headers, body = peer.take()
    assert headers.headers[":status"] == status
    assert b"gRPC" in body.payload
    assert body.ends_stream
    assert peer.counters.not_grpc == 1
    assert peer.counters.streams_active == 0


def test_head_request_gets_no_body():
    peer = Peer()
    peer.open(1, method="HEAD", end=True)
    [headers] = peer.take()
    assert (headers.headers[":status"], headers.ends_stream) == ("405", True)


def test_too_large_message_is_resource_exhausted():
    peer = Peer(Limits(max_message_bytes=100))
    peer.open(1)
    peer.open(3)
    peer.message(1, b"x" * 101)
    assert peer.take()[0].headers["grpc-status"] == "8"
    assert peer.counters.messages_too_large == 1
    peer.message(3, b"x" * 100)
    assert peer.replies(3) == [b"x" * 100]


def test_compressed_message_is_unimplemented():
    peer = Peer()
    peer.open(1)
    peer.send(data(1, MESSAGE_HEAD.pack(1, 1) + b"x"))
    assert peer.take()[0].headers["grpc-status"] == "12"
    assert peer.counters.compressed_messages == 1


def test_pending_status_is_not_replaced():
    peer = Peer(settings={4: 0})
    peer.open(1)
    peer.send(data(1, MESSAGE_HEAD.pack(0, 6) + b"finish" + b"hal"))
    peer.send(data(1, b"", end=True))
    peer.send(frames.window_update(1, 100))
    assert peer.take()[-1].headers == {"grpc-status": "0"}


def test_end_within_a_message_is_invalid_argument():
    peer = Peer()
    peer.open(1)
    peer.send(data(1, MESSAGE_HEAD.pack(0, 10) + b"half", end=True))
    [trailers] = peer.take()
    assert (trailers.headers["grpc-status"], trailers.headers["grpc-message"]) == ("3", "the stream ends within a message")
    assert peer.sessions[0].causes == [CloseCause.ERROR]


def test_deadline_ends_the_stream():
    peer = Peer()
    peer.open(1, grpc_timeout="500m")
    peer.open(3)
    peer.message(1, b"later")
    peer.tick(0.4)
    assert peer.take() == []
    peer.tick(0.2)
    assert peer.take()[0].headers["grpc-status"] == "4"
    assert peer.counters.deadlines_exceeded == 1
    assert peer.tasks[0].cancelled
    assert peer.counters.streams_active == 1


def test_first_block_empties_the_hpack_table():
    peer = Peer()
    for stream in (1, 3):
        peer.open(stream)
        peer.message(stream, b"x", end=True)
    blocks = [found.payload for found in peer.take() if found.kind is FrameType.HEADERS]
    assert [block.startswith(b"\x20") for block in blocks] == [True, False, False, False]


def test_drain_ends_endless_streams_at_once():
    peer = Peer()
    peer.open(1, path=ENDLESS_PATH)
    peer.message(1, b"later", end=True)
    peer.connection.drain(peer.now, 30)
    [first_goaway, ping, trailers] = peer.take()
    assert (first_goaway.kind, ping.kind) == (FrameType.GOAWAY, FrameType.PING)
    assert trailers.headers["grpc-status"] == "14"
    assert peer.sessions[0].causes == [CloseCause.DRAIN]


def raising(exception: Exception):
    def function(*_arguments: object) -> None:
        raise exception

    return function


def test_messages_after_the_finishing_one_are_dropped():
    peer = Peer()
    peer.open(1)
    many = b"".join(MESSAGE_HEAD.pack(0, len(message)) + message for message in (b"finish", *[b"unread"] * 100))
    peer.send(frame(FrameType.DATA, END_STREAM, 1, many))
    assert peer.sessions[0].received == [b"finish"]
    assert peer.sessions[0].causes == [CloseCause.END]


def test_frame_full_of_messages_is_answered_in_order():
    peer = Peer()
    peer.open(1)
    peer.send(data(1, b"".join(MESSAGE_HEAD.pack(0, 4) + b"%04d" % number for number in range(2000)), end=True))
    assert peer.replies(1) == [b"%04d" % number for number in range(2000)]
    assert peer.sessions[0].causes == [CloseCause.END]
