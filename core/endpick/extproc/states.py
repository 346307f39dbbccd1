"""The states of a stream and of the request and the response in it, what may follow in each, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from endpick.extproc.stream import GrpcStatus, ProtocolError


class SessionState(IntEnum):
    """Where a stream stands between its first message and its end."""

    RECEIVING = 0
    """The request arrives; the director has not been asked."""
    BYPASSED = 1
    """The gateway answers the client by itself: a response came before a decision, and what is left of the request leads nowhere."""
    DECIDING = 2
    """The director was asked and has not answered; what arrives meanwhile is kept."""
    ROUTED = 3
    """The gateway knows the endpoint; the rest of the request and the response pass through."""
    ANSWERED = 4
    """The gateway was told to answer the client with an error; nothing more is read or sent."""
    CLOSED = 5
    """The stream is over."""


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
"""A director that answers at once takes a stream from RECEIVING to ROUTED or ANSWERED without DECIDING."""


class MessageState(IntEnum):
    """How much of one HTTP message, the request or the response, the gateway has sent."""

    IDLE = 0
    BODY = 1
    """Its headers came; its body or trailers follow."""
    DONE = 2
    """Its body is over; only trailers may follow."""
    TRAILED = 3
    """Its trailers came, the last that there is."""


class MessagePart(IntEnum):
    """One ext_proc message about an HTTP message; LAST_… ends the body."""

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
"""What is not here, the gateway may not send. A gateway that buffers a body sends trailers after a body that is over."""


_PLURAL: Final = {MessagePart.HEADERS: "headers", MessagePart.LAST_HEADERS: "headers", MessagePart.TRAILERS: "trailers"}


def misplaced(message: str, state: MessageState, part: MessagePart) -> ProtocolError:
    """The gateway sent a part of a `request` or `response` that cannot come in this state."""
    what = f"{message} {_PLURAL[part]}" if part in _PLURAL else f"a {message} body"
    if part <= MessagePart.LAST_HEADERS or (part is MessagePart.TRAILERS and state is MessageState.TRAILED):
        return out_of_order(f"{what} came twice")
    if state is MessageState.IDLE:
        return out_of_order(f"{what} came before the {message} headers")
    return out_of_order(f"{what} came after the end of the {message}")


def out_of_order(what: str) -> ProtocolError:
    """The gateway sent something that cannot come here."""
    return ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"{what}; the messages of a stream must follow one HTTP request")
