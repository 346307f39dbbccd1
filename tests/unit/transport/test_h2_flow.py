"""Flow control in both directions, and clients that do not read."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.transport.h2 import frames
from endpick.transport.h2.frames import CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES, ErrorCode, FrameType, parse_settings
from endpick.transport.h2.send import MAX_PENDING_BYTES
from endpick.transport.h2.stream import MESSAGE_HEAD
from unit.transport.peer import EchoSession, FakeSocket, Peer, data, frame

INITIAL_WINDOW = 4
SETTING = Struct(">HI")
LARGEST_INCREMENT = 2**31 - 1


def body(found):
    return b"".join(frame.payload for frame in found if frame.kind is FrameType.DATA)


def window_updates(found):
    return [(update.stream, int.from_bytes(update.payload, "big")) for update in found if update.kind is FrameType.WINDOW_UPDATE]


def test_reply_waits_for_stream_window():
    peer = Peer(settings={INITIAL_WINDOW: 10})
    peer.open(1)
    peer.message(1, b"reply:20")
    assert len(body(peer.take())) == 10
    peer.send(frames.window_update(1, 5))
    assert len(body(peer.take())) == 5
    peer.send(frames.window_update(1, 100))
    assert len(body(peer.take())) == 10


def test_trailers_wait_for_pending_messages():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"finish")
    assert [frame.ends_stream for frame in peer.take()] == [False]
    peer.send(frames.window_update(1, 100))
    assert [frame.kind for frame in peer.take()] == [FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM]
    assert peer.counters.streams_active == 0


def test_connection_window_is_shared_fairly():
    peer = Peer(settings={INITIAL_WINDOW: 10**6})
    for stream in (1, 3, 5):
        peer.open(stream)
        peer.message(stream, b"reply:60000")
    assert len(body(peer.take())) == 65_535
    served = []
    for _ in range(10):
        peer.send(frames.window_update(0, 16_384))
        served += [frame.stream for frame in peer.take() if frame.kind is FrameType.DATA]
    assert {1, 3, 5} - set(served) <= {1}
    assert served.index(5) <= 2


def test_pending_replies_fill_frames_of_the_clients_size():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    for size in (40_000, 10, 3000):
        peer.message(1, b"reply:%d" % size)
    peer.take()
    peer.send(frames.window_update(1, 10**6))
    sizes = [len(frame.payload) for frame in peer.take() if frame.kind is FrameType.DATA]
    assert sizes == [16_384, 16_384, 40_000 + 10 + 3000 + 3 * MESSAGE_HEAD.size - 2 * 16_384]


def test_initial_window_change_moves_open_windows():
    peer = Peer(settings={INITIAL_WINDOW: 100})
    peer.open(1)
    peer.message(1, b"reply:200")
    assert len(body(peer.take())) == 100
    peer.send(frames.settings({INITIAL_WINDOW: 50}))
    peer.send(frames.window_update(1, 49))
    assert body(peer.take()) == b"", "the window is negative"
    peer.send(frames.window_update(1, 11))
    assert len(body(peer.take())) == 10


def test_repeated_setting_applies_last_value_only():
    values = b"".join(SETTING.pack(INITIAL_WINDOW, value) for value in (*range(10_000), 7))
    assert parse_settings(values) == [(INITIAL_WINDOW, 7)]
    peer = Peer()
    peer.open(1)
    peer.send(frame(FrameType.SETTINGS, 0, 0, values))
    peer.message(1, b"reply:20")
    assert len(body(peer.take())) == 7


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 200)), max_size=40),
)
def test_windows_alone_decide_how_much_arrives(sizes, updates):
    peer = Peer(settings={INITIAL_WINDOW: 30})
    peer.open(1)
    for size in sizes:
        peer.message(1, b"reply:%d" % size)
    allowed, received = 30, len(body(peer.take()))
    total = sum(sizes) + 5 * len(sizes)
    assert received == min(total, allowed)
    for stream, increment in updates:
        peer.send(frames.window_update(stream, increment))
        allowed += increment if stream else 0
        received += len(body(peer.take()))
        assert received == min(total, allowed)


def send_half_a_window(peer):
    """Enough messages that the stream's window is due to be reopened."""
    for _ in range(10):
        peer.message(1, b"x" * (STREAM_WINDOW_BYTES // 20))


def test_stream_window_reopens_once_half_is_used():
    peer = Peer(settings={INITIAL_WINDOW: 2**20})
    peer.open(1)
    peer.message(1, b"x" * 100)
    assert window_updates(peer.take()) == []
    peer.send(frames.window_update(0, 2**20))
    send_half_a_window(peer)
    assert [stream for stream, _ in window_updates(peer.take())] == [1]


def test_stream_window_stays_closed_while_a_decision_waits():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later")
    send_half_a_window(peer)
    assert window_updates(peer.take()) == []
    peer.connection.streams.resume(peer.waiting[0], 1)
    assert [stream for stream, _ in window_updates(peer.take())] == [1]


def test_stream_window_stays_closed_while_replies_wait():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    send_half_a_window(peer)
    assert window_updates(peer.take()) == []
    peer.send(frames.window_update(0, 2**20) + frames.window_update(1, 2**20))
    assert [stream for stream, _ in window_updates(peer.take())] == [1]


def test_exceeding_the_stream_window_resets_the_stream():
    peer = Peer()
    peer.open(1)
    peer.message(1, b"later")
    for _ in range(17):
        peer.send(data(1, MESSAGE_HEAD.pack(0, 65_531) + b"x" * 65_531))
    [reset] = [found for found in peer.take() if found.kind is FrameType.RST_STREAM]
    assert reset.code is ErrorCode.FLOW_CONTROL_ERROR
    assert not peer.connection.lifetime.closing


def test_exceeding_the_connection_window_closes_the_connection():
    peer = Peer()
    peer.connection.set_writable(False)
    for stream in range(1, 41, 2):
        peer.open(stream)
        for _ in range(15):
            peer.send(data(stream, MESSAGE_HEAD.pack(0, 10**6) + b"x" * 60_000))
    assert peer.take()[-1].code is ErrorCode.FLOW_CONTROL_ERROR
    assert peer.connection.lifetime.closing


@pytest.mark.parametrize(("stream", "closes"), [(1, False), (0, True)])
def test_window_overflow_is_a_flow_control_error(stream, closes):
    peer = Peer()
    peer.open(1)
    peer.send(frames.window_update(stream, LARGEST_INCREMENT))
    assert peer.take()[0].code is ErrorCode.FLOW_CONTROL_ERROR
    assert peer.connection.lifetime.closing is closes


def test_unwritable_socket_holds_replies_back():
    peer = Peer()
    peer.open(1)
    peer.connection.set_writable(False)
    peer.message(1, b"hello")
    assert body(peer.take()) == b""
    peer.connection.set_writable(True)
    assert body(peer.take())[5:] == b"hello"


def test_unread_replies_end_the_stream_at_the_limit():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.open(3)
    for _ in range(5):
        peer.message(1, b"reply:%d" % (MAX_PENDING_BYTES // 4))
    [*_, reset] = peer.take()
    assert (reset.kind, reset.stream, reset.code) == (FrameType.RST_STREAM, 1, ErrorCode.ENHANCE_YOUR_CALM)
    assert (peer.counters.slow_readers, peer.counters.streams_active) == (1, 1)


def test_unread_reply_to_a_decision_ends_the_stream():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"later")
    peer.connection.streams.resume(peer.waiting[0], "x" * MAX_PENDING_BYTES)
    assert peer.take()[-1].code is ErrorCode.ENHANCE_YOUR_CALM


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=6), st.sampled_from([65_535, 2**20]), st.sampled_from([16_384, 100_000]))
def test_writing_in_pieces_gives_the_same_bytes(sizes, window, frame_bytes):
    peers = [Peer(settings={INITIAL_WINDOW: window, frames.Setting.MAX_FRAME_SIZE: frame_bytes}) for _ in range(2)]
    for peer in peers:
        peer.open(1)
        for size in sizes:
            peer.message(1, b"reply:%d" % size)
    socket = FakeSocket()
    peers[0].connection.outbox.write_to(socket)
    assert b"".join(socket.pieces) == peers[1].connection.outbox.take()
    assert peers[0].connection.outbox.take() == b""


class Replying(EchoSession):
    """Answers each message with the same reply."""

    def __init__(self, reply) -> None:
        super().__init__()
        self._reply = reply

    def receive(self, message):
        return (self._reply,)


def wide_peer(reply) -> Peer:
    peer = Peer(session=lambda: Replying(reply), settings={INITIAL_WINDOW: 2**20})
    peer.send(frames.window_update(0, 2**20))
    peer.open(1)
    peer.message(1, b"x")
    return peer


LONG = bytes(100_000)


def test_long_reply_is_not_copied():
    socket = FakeSocket()
    wide_peer(LONG).connection.outbox.write_to(socket)
    long = [piece for piece in socket.pieces if len(piece) >= 4096]
    assert sum(map(len, long)) >= 98_000
    assert all(isinstance(piece, memoryview) and piece.obj is LONG for piece in long)


def test_connection_window_reopens_once_half_is_used():
    peer = Peer()
    for stream in range(1, 25, 2):
        peer.open(stream)
        for _ in range(12):
            peer.send(data(stream, MESSAGE_HEAD.pack(0, 10**6) + b"x" * 60_000))
    [(stream, increment)] = [update for update in window_updates(peer.take()) if update[0] == 0]
    assert increment >= CONNECTION_WINDOW_BYTES // 2
