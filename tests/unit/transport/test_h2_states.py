"""The state machines, walked whole: every event in every state."""

from __future__ import annotations

import itertools

import pytest

from endpick.transport.h2 import frames, lifetime, stream
from endpick.transport.h2.errors import InvalidTransitionError
from endpick.transport.h2.frames import FrameType
from endpick.transport.h2.lifetime import ConnectionState
from endpick.transport.h2.stream import NEXT_STATE, ResponseState, StreamEvent, StreamState
from unit.transport.peer import Peer


@pytest.mark.parametrize(
    ("members", "module"),
    [(StreamState, stream), (StreamEvent, stream), (ResponseState, stream), (ConnectionState, lifetime)],
    ids=lambda value: value.__name__,
)
def test_the_plain_integers_are_those_of_the_members(members, module):
    assert {member.name: getattr(module, member.name) for member in members} == {member.name: member.value for member in members}


def test_the_plain_integers_of_frames_are_those_of_their_types():
    for name in ("DATA", "HEADERS", "RST_STREAM", "WINDOW_UPDATE", "CONTINUATION"):
        assert getattr(frames, name) == FrameType[name]


# RFC 9113, figure 2, without the reserved states and PUSH_PROMISE; a client opens every stream, so HEADERS are only received.
FIGURE_2 = {
    StreamState.IDLE: {StreamEvent.RECV_HEADERS: StreamState.OPEN},
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
HAS_A_CONNECTION_TO_LOSE = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL, StreamState.HALF_CLOSED_REMOTE)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StreamState, StreamEvent)), ids=lambda member: member.name)
def test_a_stream_moves_as_in_figure_2_and_not_otherwise(state, event):
    if event is StreamEvent.CONNECTION_CLOSED:
        expected = StreamState.CLOSED if state in HAS_A_CONNECTION_TO_LOSE else None
    else:
        expected = FIGURE_2[state].get(event)
    if expected is not None:
        assert NEXT_STATE[state, event] == expected
    else:
        with pytest.raises(InvalidTransitionError, match=f"{event.name} on a stream that is {state.name}"):
            NEXT_STATE[state, event]


def test_a_stream_of_a_client_goes_through_the_states():
    peer = Peer(settings={4: 0})
    peer.open(1)
    opened = peer.connection.streams.open[1]
    assert opened.state == StreamState.OPEN
    peer.message(1, b"hi", end=True)
    assert opened.state == StreamState.HALF_CLOSED_REMOTE, "the reply waits for a window"
    peer.send(frames.window_update(1, 100))
    assert opened.state == StreamState.CLOSED


def test_a_plain_answer_that_waits_for_a_window_gets_no_trailers_from_a_drain():
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


@pytest.mark.parametrize(("state", "next_one"), list(itertools.product(ConnectionState, ConnectionState)), ids=lambda member: member.name)
def test_a_connection_goes_forward_through_its_life_and_never_back(state, next_one):
    life = Peer(greet=False).connection.lifetime
    life.state = state
    if next_one.name in MAY_FOLLOW[state].split():
        life.enter(next_one)
        assert life.state == next_one
    else:
        with pytest.raises(InvalidTransitionError, match=f"{next_one.name} after {state.name}"):
            life.enter(next_one)
        assert life.state == state


def test_a_connection_goes_through_the_states():
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


def test_a_drain_that_begins_before_the_settings_still_serves_what_comes_with_them():
    peer = Peer(greet=False)
    peer.connection.drain(peer.now, 30)
    peer.send(frames.PREFACE + frames.settings({}) + peer.headers(1))
    peer.message(1, b"hi")
    assert peer.connection.lifetime.state == ConnectionState.DRAINING
    assert peer.replies(1) == [b"hi"]


def test_what_arrives_at_a_connection_that_closes_is_not_read():
    peer = Peer()
    peer.connection.end_now()
    assert peer.connection.lifetime.closing
    peer.take()
    peer.open(1)
    peer.connection.end_now()
    peer.connection.drain(peer.now, 30)
    peer.tick(100)
    assert peer.take() == []
