"""The states of a stream and of the two HTTP messages in it, and their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from endpick.extproc.stream import GrpcStatus, ProtocolError


class SessionState(IntEnum):
    """The state of a stream."""

    RECEIVING = 0
    """The request arrives; the director has not been called."""
    BYPASSED = 1
    """The gateway answers the client itself: a response came before the decision, and the rest of the request is ignored."""
    DECIDING = 2
    """The decision is awaited; messages are queued."""
    ROUTED = 3
    """The gateway knows the endpoint; the rest of the request and the response pass."""
    ANSWERED = 4
    """The gateway was told to answer the client with an error."""
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
"""A decision without waiting skips DECIDING."""


class MessageState(IntEnum):
    """How much of the request, or of the response, has arrived."""

    IDLE = 0
    BODY = 1
    """Headers came; body or trailers follow."""
    DONE = 2
    """The body is complete; only trailers may follow."""
    TRAILED = 3


class MessagePart(IntEnum):
    """One ext_proc message about a request or response; LAST_… ends the body."""

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
"""Everything else is a protocol error. A gateway that buffers a body sends trailers after its end."""

_PLURAL: Final = {MessagePart.HEADERS: "headers", MessagePart.LAST_HEADERS: "headers", MessagePart.TRAILERS: "trailers"}


def next_state(message: str, state: MessageState, part: MessagePart) -> MessageState:
    """The state of the `message` ("request" or "response") after this part.

    Raises:
        ProtocolError: the part cannot follow in this state.
    """
    following = MESSAGE_TRANSITIONS.get((state, part))
    if following is None:
        raise misplaced(message, state, part)
    return following


def misplaced(message: str, state: MessageState, part: MessagePart) -> ProtocolError:
    """The error for a part of a request or response that cannot come in this state."""
    subject = f"{message} {_PLURAL[part]}" if part in _PLURAL else f"a {message} body"
    if part <= MessagePart.LAST_HEADERS or (part is MessagePart.TRAILERS and state is MessageState.TRAILED):
        return out_of_order(f"{subject} came twice")
    if state is MessageState.IDLE:
        return out_of_order(f"{subject} came before the {message} headers")
    return out_of_order(f"{subject} came after the end of the {message}")


def out_of_order(problem: str) -> ProtocolError:
    """The error for a message that cannot come here."""
    return ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"{problem}; the messages of a stream must follow one HTTP request")
