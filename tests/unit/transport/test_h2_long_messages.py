"""Messages by the thousand in one frame, and replies of megabytes: taken in turns, and copied nowhere."""

from __future__ import annotations

from endpick.extproc.stream import LongReply
from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FrameType
from endpick.transport.h2.grpc import MESSAGE_HEAD
from unit.transport.peer import EchoSession, FakeSocket, Peer, data

INITIAL_WINDOW = 4


class Replying(EchoSession):
    """Answers each message with the same bytes."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self._reply = reply

    def receive(self, message):
        return (self._reply,)


def long_pieces_sent(peer):
    """What goes to the socket as it is, of the reply to one message."""
    peer.send(frames.window_update(0, 2**20))
    peer.open(1)
    peer.message(1, b"x")
    socket = FakeSocket()
    peer.connection.outbox.write_to(socket)
    return [piece for piece in socket.pieces if len(piece) >= 4096]


def test_a_long_reply_is_not_copied_on_its_way_to_the_socket():
    reply = bytes(100_000)
    peer = Peer(session=lambda: Replying(reply), settings={INITIAL_WINDOW: 2**20})
    long = long_pieces_sent(peer)
    assert sum(map(len, long)) >= 98_000, "the rest is shorter than what is worth a piece"
    assert all(isinstance(piece, memoryview) and piece.obj is reply for piece in long)


def test_of_a_frame_full_of_messages_some_are_taken_between_two_looks_at_the_clock():
    peer = Peer()
    peer.open(1)
    frame = data(1, (MESSAGE_HEAD.pack(0, 1) + b"x") * 2000, end=True) + data(3, b"")
    peer.open(3)
    received = peer.sessions[0].received
    ticks = iter(range(100, 200))
    before, turns = 0, 0
    left = peer.connection.receive(frame, 0.0, lambda: float(next(ticks)))
    while left:
        assert len(received) - before <= 64
        before, turns = len(received), turns + 1
        left = peer.connection.receive(b"", 0.0, lambda: float(next(ticks)))
    assert turns > 30
    assert received == [b"x"] * 2000
    assert peer.replies(1) == [b"x"] * 2000
    assert peer.sessions[0].causes == [CloseCause.END]


def test_what_follows_a_frame_full_of_messages_waits_for_them():
    peer = Peer()
    peer.open(1)
    sent = data(1, (MESSAGE_HEAD.pack(0, 1) + b"x") * 100) + frames.rst_stream(1, ErrorCode.CANCEL)
    left = peer.connection.receive(sent, 0.0, lambda: 1.0)
    while left:
        assert peer.sessions[0].causes == []
        left = peer.connection.receive(b"", 0.0, lambda: 1.0)
    assert peer.sessions[0].received == [b"x"] * 100
    assert peer.sessions[0].causes == [CloseCause.RESET]


def test_a_stream_that_ends_amid_a_frame_full_of_messages_gets_no_more_of_them():
    peer = Peer()
    peer.open(1)
    message = MESSAGE_HEAD.pack(0, 6) + b"finish"
    peer.send(data(1, message * 100))
    assert len(peer.sessions[0].received) == 1
    peer.open(3)
    peer.message(3, b"next")
    assert peer.replies(3) == [b"next"]


def test_a_reply_that_is_repeated_is_read_as_often():
    peer = Peer(session=lambda: Replying(LongReply([b"again"], 5000)), settings={INITIAL_WINDOW: 2**20})
    peer.send(frames.window_update(0, 2**20))
    peer.open(1)
    peer.message(1, b"x")
    assert peer.replies(1) == [b"again"] * 5000
    assert peer.memory.held_bytes == 0


def test_a_reply_that_is_repeated_more_often_than_may_wait_ends_its_stream():
    peer = Peer(session=lambda: Replying(LongReply([b"again"], 10**9)))
    peer.open(1)
    peer.message(1, b"x")
    assert [found.code for found in peer.take() if found.kind is FrameType.RST_STREAM] == [ErrorCode.ENHANCE_YOUR_CALM]
    assert peer.memory.held_bytes == 0


def test_a_reply_in_parts_is_read_as_one_and_none_of_them_is_copied():
    parts = [b"head", memoryview(bytes(70_000)), memoryview(b"y" * 30_000)]
    peer = Peer(session=lambda: Replying(LongReply(parts)), settings={INITIAL_WINDOW: 2**20})
    long = long_pieces_sent(peer)
    assert all(isinstance(piece, memoryview) and piece.obj in (parts[1].obj, parts[2].obj) for piece in long)
    assert sum(map(len, long)) > 90_000
