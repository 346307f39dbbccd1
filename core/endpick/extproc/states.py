"""The states of a stream and their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from endpick.extproc.stream import GrpcStatus, ProtocolError


class SessionState(IntEnum):
    """The state of a stream."""

    RECEIVING = 0
    BYPASSED = 1
    """The gateway answers itself; the rest of the request is ignored."""
    DECIDING = 2
    ROUTED = 3
    ANSWERED = 4
    """The gateway got an error for the client."""
    CLOSED = 5


SESSION_TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = {
    SessionState.RECEIVING: frozenset(
        {SessionState.BYPASSED, SessionState.DECIDING, SessionState.ROUTED, SessionState.ANSWERED, SessionState.CLOSED}
    ),
    SessionState.BYPASSED: frozenset({SessionState.CLOSED}),
    SessionState.DECIDING: frozenset({SessionState.ROUTED, SessionState.ANSWERED, SessionState.CLOSED}),
    SessionState.ROUTED: frozenset({SessionState.ANSWERED, SessionState.CLOSED}),
    SessionState.ANSWERED: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


class MessageState(IntEnum):
    """How much of a request or response has arrived."""

    IDLE = 0
    BODY = 1
    """Body or trailers follow."""
    DONE = 2
    """Only trailers may follow."""
    TRAILED = 3


class MessagePart(IntEnum):
    """A part of a request or response; LAST_… ends the body."""

    HEADERS = 0
    LAST_HEADERS = 1
    BODY = 2
    LAST_BODY = 3
    TRAILERS = 4


MESSAGE_TRANSITIONS: Final[Mapping[tuple[int, int], MessageState]] = {
    (MessageState.IDLE, MessagePart.HEADERS): MessageState.BODY,
    (MessageState.IDLE, MessagePart.LAST_HEADERS): MessageState.DONE,
    (MessageState.BODY, MessagePart.BODY): MessageState.BODY,
    (MessageState.BODY, MessagePart.LAST_BODY): MessageState.DONE,
    (MessageState.BODY, MessagePart.TRAILERS): MessageState.TRAILED,
    (MessageState.DONE, MessagePart.TRAILERS): MessageState.TRAILED,
}
"""Everything else is an error; a gateway that buffers sends trailers after the end."""

_PLURAL: Final = {MessagePart.HEADERS: "headers", MessagePart.LAST_HEADERS: "headers", MessagePart.TRAILERS: "trailers"}


def next_state(message: str, state: MessageState, part: MessagePart) -> MessageState:
    """The state after this part. Raises ProtocolError."""
    following = MESSAGE_TRANSITIONS.get((state, part))
    if following is None:
        raise misplaced(message, state, part)
    return following


def misplaced(message: str, state: MessageState, part: MessagePart) -> ProtocolError:
    """The error for a part in a wrong state."""
    subject = f"{message} {_PLURAL[part]}" if part in _PLURAL else f"a {message} body"
    if part <= MessagePart.LAST_HEADERS or (part is MessagePart.TRAILERS and state is MessageState.TRAILED):
        return out_of_order(f"{subject} came twice")
    if state is MessageState.IDLE:
        return out_of_order(f"{subject} came before the {message} headers")
    return out_of_order(f"{subject} came after the end of the {message}")


def out_of_order(problem: str) -> ProtocolError:
    """The error for a misplaced message."""
    return ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"{problem}; the messages of a stream must follow one HTTP request")
