"""The state machines of streams and connections: every event in every state."""

from __future__ import annotations

import itertools

import pytest

from endpick.transport.h2 import frames
from endpick.transport.h2.control import ConnectionState
from endpick.transport.h2.frames import FrameType, InvalidTransitionError
from endpick.transport.h2.stream import Stream, StreamEvent, StreamState
from unit.transport.peer import Peer


def test_frame_constants_match_the_enum():
    for name in ("DATA", "HEADERS", "RST_STREAM", "WINDOW_UPDATE", "CONTINUATION"):
        assert getattr(frames, name) == FrameType[name]


# RFC 9113, figure 2, without the idle and reserved states.
FIGURE_2 = {
    StreamState.OPEN: {
        StreamEvent.RECV_END_STREAM: StreamState.HALF_CLOSED_REMOTE,
        StreamEvent.SEND_END_STREAM: StreamState.HALF_CLOSED_LOCAL,
        StreamEvent.RECV_RST_STREAM: StreamState.CLOSED,
        StreamEvent.SEND_RST_STREAM: StreamState.CLOSED,
    },
    StreamState.HALF_CLOSED_LOCAL: {
        StreamEvent.RECV_END_STREAM: StreamState.CLOSED,
        StreamEvent.RECV_RST_STREAM: StreamState.CLOSED,
        StreamEvent.SEND_RST_STREAM: StreamState.CLOSED,
    },
    StreamState.HALF_CLOSED_REMOTE: {
        StreamEvent.SEND_END_STREAM: StreamState.CLOSED,
        StreamEvent.RECV_RST_STREAM: StreamState.CLOSED,
        StreamEvent.SEND_RST_STREAM: StreamState.CLOSED,
    },
    StreamState.CLOSED: {},
}


def test_stream_moves_as_in_the_rfc_and_not_otherwise():
    for state, event in itertools.product(StreamState, StreamEvent):
        stream = Stream(1, 0, 0)
        stream.state = state
        expected = FIGURE_2[state].get(event)
        if event is StreamEvent.CONNECTION_CLOSED and state is not StreamState.CLOSED:
            expected = StreamState.CLOSED
        if expected is None:
            with pytest.raises(InvalidTransitionError, match=f"{event.name} on a stream that is {state.name}"):
                stream.move(event)
        else:
            stream.move(event)
            assert stream.state is expected


def test_stream_goes_through_its_states():
    peer = Peer(settings={4: 0})
    peer.open(1)
    opened = peer.connection.streams.open[1]
    assert opened.state == StreamState.OPEN
    peer.message(1, b"hi", end=True)
    assert opened.state == StreamState.HALF_CLOSED_REMOTE, "the reply waits for a window"
    peer.send(frames.window_update(1, 100))
    assert opened.state == StreamState.CLOSED


def test_pending_plain_answer_gets_no_grpc_trailers():
    peer = Peer(settings={4: 0})
    peer.open(1, method="GET", end=True)
    peer.connection.drain(peer.now, 0)
    peer.tick(0.1)
    peer.send(frames.window_update(1, 1000))
    sent = [frame for frame in peer.take() if frame.stream == 1]
    assert [(frame.kind, frame.ends_stream) for frame in sent] == [(FrameType.HEADERS, False), (FrameType.DATA, True)]


MAY_FOLLOW = {
    ConnectionState.WAITING_FOR_PREFACE: "WAITING_FOR_SETTINGS LAST_CALL CLOSING CLOSED",
    ConnectionState.WAITING_FOR_SETTINGS: "OPEN DRAINING LAST_CALL CLOSING CLOSED",
    ConnectionState.OPEN: "DRAINING LAST_CALL CLOSING CLOSED",
    ConnectionState.DRAINING: "LAST_CALL CLOSING CLOSED",
    ConnectionState.LAST_CALL: "CLOSING CLOSED",
    ConnectionState.CLOSING: "CLOSED",
    ConnectionState.CLOSED: "",
}


def test_connection_states_never_go_back():
    for state, following in itertools.product(ConnectionState, ConnectionState):
        lifetime = Peer(greet=False).connection.lifetime
        lifetime.state = state
        if following.name in MAY_FOLLOW[state].split():
            lifetime.enter(following)
            assert lifetime.state is following
        else:
            with pytest.raises(InvalidTransitionError, match=f"{following.name} after {state.name}"):
                lifetime.enter(following)
            assert lifetime.state is state


def test_connection_goes_through_its_states():
    peer = Peer(greet=False)
    connection = peer.connection
    life = connection.lifetime
    seen = [life.state]
    steps = [
        lambda: peer.send(frames.PREFACE),
        lambda: peer.send(frames.settings({})),
        lambda: peer.open(1),
        lambda: connection.drain(peer.now, 30),
        lambda: peer.send(frames.ping(b"draining", ack=True)),
        lambda: peer.message(1, b"finish"),
        connection.lost,
    ]
    for step in steps:
        step()
        seen.append(life.state)
    assert seen == [
        ConnectionState.WAITING_FOR_PREFACE,
        ConnectionState.WAITING_FOR_SETTINGS,
        ConnectionState.OPEN,
        ConnectionState.OPEN,
        ConnectionState.DRAINING,
        ConnectionState.LAST_CALL,
        ConnectionState.CLOSING,
        ConnectionState.CLOSED,
    ]


def test_drain_before_settings_still_serves_requests():
    peer = Peer(greet=False)
    peer.connection.drain(peer.now, 30)
    peer.send(frames.PREFACE + frames.settings({}) + peer.headers(1))
    peer.message(1, b"hi")
    assert peer.connection.lifetime.state == ConnectionState.DRAINING
    assert peer.replies(1) == [b"hi"]


def test_closing_connection_reads_nothing():
    peer = Peer()
    peer.connection.end_now()
    assert peer.connection.lifetime.closing
    peer.take()
    peer.open(1)
    peer.connection.end_now()
    peer.connection.drain(peer.now, 30)
    peer.tick(100)
    assert peer.take() == []
