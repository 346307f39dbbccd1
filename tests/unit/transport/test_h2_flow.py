"""Windows in both directions, readers that do not read, and the memory all that may take."""

from __future__ import annotations

import tracemalloc
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.requests.memory import MemoryAccount, MemoryBudget
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FrameBuffer, FrameType, parse_settings
from endpick.transport.h2.grpc import MESSAGE_HEAD
from endpick.transport.limits import Limits
from unit.transport.peer import FakeSocket, Frame, Peer, data, frame, parsed

INITIAL_WINDOW = 4
SETTING = Struct(">HI")
NO_CREDIT = 2**31 - 1


def body(found):
    return b"".join(frame.payload for frame in found if frame.kind is FrameType.DATA)


def test_a_reply_beyond_the_window_of_its_stream_waits_for_an_update():
    peer = Peer(settings={INITIAL_WINDOW: 10})
    peer.open(1)
    peer.message(1, b"reply:20")
    assert len(body(peer.take())) == 10
    peer.send(frames.window_update(1, 5))
    assert len(body(peer.take())) == 5
    peer.send(frames.window_update(1, 100))
    assert len(body(peer.take())) == 10
    assert peer.memory.held_bytes == 0


def test_trailers_wait_for_the_messages_before_them():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"finish")
    assert [frame.ends_stream for frame in peer.take()] == [False]
    peer.send(frames.window_update(1, 100))
    assert [frame.kind for frame in peer.take()] == [FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM]
    assert peer.counters.streams_active == 0


def test_the_window_of_the_connection_is_shared_fairly():
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
    assert served.index(5) <= 2, "the third stream waits for its turn, not for the second to end"


def test_replies_are_cut_to_the_frame_size_that_the_client_takes():
    peer = Peer(settings={INITIAL_WINDOW: 10**6})
    peer.open(1)
    peer.message(1, b"reply:40000")
    assert [len(frame.payload) for frame in peer.take() if frame.kind is FrameType.DATA] == [16_384, 16_384, 40_005 - 32_768]


def test_replies_that_wait_fill_their_frames_however_they_are_held():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"reply:40000")
    peer.message(1, b"reply:10")
    peer.message(1, b"reply:3000")
    peer.take()
    peer.send(frames.window_update(1, 10**6))
    sizes = [len(frame.payload) for frame in peer.take() if frame.kind is FrameType.DATA]
    assert sizes == [16_384, 16_384, 40_000 + 10 + 3000 + 3 * MESSAGE_HEAD.size - 2 * 16_384]
    assert peer.memory.held_bytes == 0


def test_a_change_of_the_initial_window_moves_the_windows_of_open_streams():
    peer = Peer(settings={INITIAL_WINDOW: 100})
    peer.open(1)
    peer.message(1, b"reply:200")
    assert len(body(peer.take())) == 100
    peer.send(frames.settings({INITIAL_WINDOW: 50}))
    peer.send(frames.window_update(1, 49))
    assert body(peer.take()) == b"", "the window is negative"
    peer.send(frames.window_update(1, 11))
    assert len(body(peer.take())) == 10


def test_of_a_window_that_one_frame_changes_ten_thousand_times_only_the_last_value_is_followed():
    values = b"".join(SETTING.pack(INITIAL_WINDOW, value) for value in (*range(10_000), 7))
    assert parse_settings(values) == [(INITIAL_WINDOW, 7)]
    peer = Peer()
    peer.open(1)
    peer.send(frame(FrameType.SETTINGS, 0, 0, values))
    peer.message(1, b"reply:20")
    assert len(body(peer.take())) == 7


def test_nothing_but_the_windows_decides_what_arrives():
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 400), min_size=1, max_size=8),
        st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 200)), max_size=40),
    )
    def check(sizes, updates):
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
        assert peer.memory.held_bytes == total - received

    check()


def test_the_client_gets_window_back_as_its_messages_are_taken():
    limits = Limits(stream_window_bytes=1000, connection_window_bytes=100_000)
    peer = Peer(limits)
    peer.open(1)
    peer.message(1, b"x" * 400)
    assert FrameType.WINDOW_UPDATE not in [frame.kind for frame in peer.take()]
    peer.message(1, b"x" * 400)
    [update] = [frame for frame in peer.take() if frame.kind is FrameType.WINDOW_UPDATE]
    assert (update.stream, int.from_bytes(update.payload, "big")) == (1, 810)


def test_no_window_is_given_back_while_a_decision_is_awaited():
    peer = Peer(Limits(stream_window_bytes=1000))
    peer.open(1)
    peer.message(1, b"later")
    peer.message(1, b"x" * 900)
    assert peer.take() == []
    peer.connection.streams.resume(peer.waiting[0], 1)
    assert FrameType.WINDOW_UPDATE in [frame.kind for frame in peer.take()]


def test_no_window_is_given_back_while_replies_wait():
    peer = Peer(Limits(stream_window_bytes=1000), settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"x" * 900)
    assert FrameType.WINDOW_UPDATE not in [frame.kind for frame in peer.take()]
    peer.send(frames.window_update(1, 10_000))
    assert FrameType.WINDOW_UPDATE in [frame.kind for frame in peer.take()]


def test_more_than_the_window_of_a_stream_is_a_flow_control_error_of_that_stream():
    peer = Peer(Limits(stream_window_bytes=100))
    peer.open(1)
    peer.send(data(1, b"x" * 101))
    [reset] = peer.take()
    assert (reset.kind, reset.code) == (FrameType.RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
    assert not peer.connection.lifetime.closing


def test_more_than_the_window_of_the_connection_is_a_flow_control_error_of_the_connection():
    peer = Peer(Limits(stream_window_bytes=10**6, connection_window_bytes=100_000))
    peer.open(1)
    peer.connection.set_writable(False)
    for _ in range(4):
        peer.send(data(1, MESSAGE_HEAD.pack(0, 10**6)[:5] + b"x" * 30_000))
    assert peer.take()[-1].code is ErrorCode.FLOW_CONTROL_ERROR
    assert peer.connection.lifetime.closing


def test_a_socket_that_takes_nothing_keeps_replies_at_their_streams():
    peer = Peer()
    peer.open(1)
    peer.connection.set_writable(False)
    peer.message(1, b"hello")
    assert body(peer.take()) == b""
    assert peer.memory.held_bytes == 10
    peer.connection.set_writable(True)
    assert body(peer.take())[5:] == b"hello"


def test_replies_that_the_client_does_not_read_end_the_stream_at_the_limit():
    peer = Peer(Limits(max_stream_output_bytes=5000), settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.open(3)
    for _ in range(4):
        peer.message(1, b"reply:1500")
    [*_, reset] = peer.take()
    assert (reset.kind, reset.stream, reset.code) == (FrameType.RST_STREAM, 1, ErrorCode.ENHANCE_YOUR_CALM)
    assert (peer.counters.slow_readers, peer.counters.streams_active) == (1, 1)
    assert peer.memory.held_bytes == 0


def test_short_replies_that_wait_take_little_more_memory_than_is_accounted_for():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    peer.open(1)
    message = MESSAGE_HEAD.pack(0, 1) + b"x"
    tracemalloc.start()
    try:
        for _ in range(50):
            peer.send(data(1, message * 1000))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    sent = 50_000 * len(message)
    assert peer.memory.held_bytes == sent
    # 50,000 entries of the echoing session's own log besides.
    assert taken < 2 * sent + 50_000 * 10
    peer.send(frames.window_update(1, sent) + frames.window_update(0, sent))
    assert body(peer.take()) == message * 50_000


def test_replies_to_a_decision_that_the_client_does_not_read_end_the_stream_too():
    peer = Peer(Limits(max_stream_output_bytes=5), settings={INITIAL_WINDOW: 0})
    peer.open(1)
    peer.message(1, b"later")
    peer.connection.streams.resume(peer.waiting[0], "a long answer")
    assert peer.take()[-1].code is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.counters.slow_readers == 1


def test_all_connections_together_hold_no_more_than_the_budget():
    memory = MemoryBudget(10_000)
    peers = [Peer(memory=memory) for _ in range(4)]
    for peer in peers:
        peer.open(1)
        peer.send(data(1, MESSAGE_HEAD.pack(0, 9_000) + b"x" * 3_000))
        assert memory.held_bytes <= 10_000
    assert [peer.counters.buffer_exhaustions for peer in peers] == [0, 0, 0, 1]
    assert peers[3].take()[-1].code is ErrorCode.ENHANCE_YOUR_CALM
    for peer in peers:
        peer.connection.lost()
    assert memory.held_bytes == 0


def test_a_window_may_not_grow_beyond_what_http2_counts():
    peer = Peer()
    peer.open(1)
    peer.send(frames.window_update(1, NO_CREDIT))
    assert peer.take()[0].code is ErrorCode.FLOW_CONTROL_ERROR
    assert not peer.connection.lifetime.closing
    peer.send(frames.window_update(0, NO_CREDIT))
    assert peer.take()[0].code is ErrorCode.FLOW_CONTROL_ERROR
    assert peer.connection.lifetime.closing


def test_streams_on_which_nothing_comes_are_accounted_for():
    account = MemoryAccount(1_000_000)
    peer = Peer(memory=MemoryBudget(2**30, account))
    for stream in range(1, 2001, 2):
        peer.open(stream)
    assert 100 < peer.counters.streams_active < 1000
    assert 0.9e6 < account.held_bytes <= 1_000_000
    assert peer.counters.streams_refused == 1000 - peer.counters.streams_active
    peer.connection.lost()
    assert account.held_bytes == 0


def test_no_stream_begins_while_the_process_has_no_memory_left_and_open_ones_go_on():
    account = MemoryAccount(1_000_000)
    peer = Peer(memory=MemoryBudget(2**30, account))
    peer.open(1)
    account.hold_parsed(960_000)
    peer.open(3)
    refused = [frame for frame in peer.take() if frame.kind is FrameType.RST_STREAM]
    assert [(frame.stream, frame.code) for frame in refused] == [(3, ErrorCode.REFUSED_STREAM)]
    assert (account.counts()["stream_refused"], peer.counters.streams_refused, peer.counters.streams_active) == (1, 1, 1)
    account.hold_parsed(-960_000)
    account.measured(0, 0)
    peer.open(5)
    assert peer.counters.streams_active == 2


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 5))
def test_what_is_left_of_a_turn_is_read_in_the_next_ones_whatever_the_pieces(lengths, step):
    peer, ticks = Peer(), iter(range(10**6))
    peer.open(1)
    sent = b"".join(data(1, MESSAGE_HEAD.pack(0, length) + bytes([number]) * length) for number, length in enumerate(lengths)) * 3
    turns, left = 0, False
    for start in range(0, len(sent), 7 * step):
        left = peer.connection.receive(sent[start : start + 7 * step], 0.0, lambda: next(ticks))
        turns += 1
    while left:
        left = peer.connection.receive(b"", 0.0, lambda: next(ticks))
        turns += 1
    assert peer.sessions[0].received == [bytes([number]) * length for number, length in enumerate(lengths)] * 3
    assert turns >= len(lengths) * 3 / 4 - 1


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=6), st.sampled_from([65_535, 2**20]), st.sampled_from([16_384, 100_000]))
def test_what_is_written_in_pieces_is_what_would_be_written_in_one(sizes, window, frame_bytes):
    peers = [Peer(settings={INITIAL_WINDOW: window, frames.Setting.MAX_FRAME_SIZE: frame_bytes}) for _ in range(2)]
    for peer in peers:
        peer.open(1)
        for size in sizes:
            peer.message(1, b"reply:" + b"%d" % size)
    socket = FakeSocket()
    peers[0].connection.outbox.write_to(socket)
    assert b"".join(socket.pieces) == peers[1].connection.outbox.take()
    assert peers[0].connection.outbox.take() == b""


class FullSocket(FakeSocket):
    """Holds a mebibyte, and then says that it takes no more."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.peer = peer

    def write(self, data: bytes) -> None:
        super().write(data)
        if sum(map(len, self.pieces)) > 2**20:
            self.peer.connection.set_writable(False)

    def writelines(self, list_of_data: list[bytes | memoryview]) -> None:
        for piece in list_of_data:
            self.write(bytes(piece))


@pytest.mark.parametrize("message", [b"reply:20000000", b"split:200000"])
def test_what_a_socket_does_not_take_waits_at_its_stream_however_wide_the_windows_are(message):
    wide = {INITIAL_WINDOW: 2**28, frames.Setting.MAX_FRAME_SIZE: 2**24 - 1}
    alone, peer = Peer(settings=wide), Peer(settings=wide)
    for each in (alone, peer):
        each.send(frames.window_update(0, 2**28))
        each.open(1)
        each.message(1, message)
    expected = b""
    while written := body(alone.take()):
        expected += written
        alone.connection.outbox.push_ready()
    socket = FullSocket(peer)
    sent = []
    peer.connection.outbox.write_to(socket)
    assert peer.memory.held_bytes > 0
    while socket.pieces:
        assert sum(map(len, socket.pieces)) < 3 * 2**20
        sent += socket.pieces
        socket.pieces = []
        peer.connection.set_writable(True)
        peer.connection.outbox.write_to(socket)
    assert peer.memory.held_bytes == 0
    assert body(Frame(FrameType(kind), 0, 0, payload) for kind, _, _, payload in parsed(FrameBuffer(2**24), b"".join(sent))) == expected


def test_of_settings_that_visit_many_streams_no_more_is_taken_than_one_between_two_looks_at_the_clock():
    peer = Peer(settings={INITIAL_WINDOW: 0})
    for stream in range(1, 601, 2):
        peer.open(stream)
        peer.message(stream, b"reply:20")
    peer.take()
    ticks = iter(range(100, 200))
    left = peer.connection.receive(b"".join(frames.settings({INITIAL_WINDOW: size}) for size in (1, 2, 3)), 0.0, lambda: float(next(ticks)))
    assert left
    assert peer.connection.outbox.stream_window == 1
