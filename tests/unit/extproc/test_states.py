"""The transition tables of an ext_proc stream."""

from __future__ import annotations

import itertools
import re

import pytest

from endpick.extproc.stream import MESSAGE_TRANSITIONS, SESSION_TRANSITIONS, GrpcStatus, MessagePart, MessageState, SessionState, misplaced


def test_stream_moves_forward_and_can_always_close():
    assert set(SESSION_TRANSITIONS) == set(SessionState)
    for state, following in SESSION_TRANSITIONS.items():
        assert all(after > state for after in following)
        assert (SessionState.CLOSED in following) == (state is not SessionState.CLOSED)


def test_every_state_is_reachable():
    assert set().union(*SESSION_TRANSITIONS.values()) | {SessionState.RECEIVING} == set(SessionState)
    assert {*MESSAGE_TRANSITIONS.values(), MessageState.IDLE} == set(MessageState)


def test_message_never_goes_back():
    assert all(after >= before for (before, _), after in MESSAGE_TRANSITIONS.items())


@pytest.mark.parametrize(
    ("state", "part"),
    [pair for pair in itertools.product(MessageState, MessagePart) if pair not in MESSAGE_TRANSITIONS],
    ids=lambda member: member.name,
)
def test_missing_transition_is_a_protocol_error(state, part):
    error = misplaced("request", state, part)
    assert error.status is GrpcStatus.INVALID_ARGUMENT
    assert re.match(r"(request|a request) (headers|body|trailers) came (twice|before the|after the end)", error.message)
