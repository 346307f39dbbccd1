"""The interface between a transport and a session, and the states of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from endpick.requests.model import CloseCause


class GrpcStatus(IntEnum):
    """Status codes that endpick uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class ProtocolError(Exception):
    """Raised to end the stream with a gRPC `status` and `message`."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class LateMessage(ProtocolError):  # noqa: N818 - ignored, no error
    """A piece, end or trailers after the end. Some gateways repeat the end of large bodies."""


class PassingBody:
    """A response body whose chunks a transport may answer unchanged."""

    __slots__ = ()

    def let_pass(self, piece: bytes) -> None:
        """Observe a chunk that the transport has answered unchanged."""


SetPassThrough = Callable[[PassingBody | None], None]  # None ends it


class StreamSession(Protocol):
    """One gRPC stream, which is one HTTP request."""

    @property
    def waiting(self) -> Awaitable[object] | None:
        """A decision, which the transport awaits before it calls `resume` or `fail`; None for none."""

    @property
    def finished(self) -> bool:
        """Whether the transport should close the stream with OK."""

    def receive(self, message: bytes) -> Sequence[bytes]:
        """Handle a message; returns the replies. Raises ProtocolError."""

    def resume(self, result: object) -> Sequence[bytes]:
        """Continue with the result of `waiting`. Raises ProtocolError."""

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Continue with the exception of `waiting`."""

    def close(self, cause: CloseCause) -> None:
        """Release the resources of the stream, when the transport has ended it; idempotent."""


SessionFactory = Callable[[], StreamSession]

_PROTOCOL_ERRORS = (GrpcStatus.INVALID_ARGUMENT, GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.FAILED_PRECONDITION, GrpcStatus.INTERNAL)


@dataclass(slots=True)
class SessionCounters:
    """Counters shared by all sessions of a listener."""

    requests: int = 0
    unroutable: int = 0  # refused before the director saw them
    bodies_too_large: int = 0
    names_too_long: int = 0
    buffer_exhaustions: int = 0  # refused: the memory budget was used up
    decision_faults: int = 0
    exchange_faults: int = 0
    messages_after_end: int = 0
    """Pieces, ends and trailers after the end of a message; ignored."""
    protocol_errors: dict[GrpcStatus, int] = field(default_factory=lambda: dict.fromkeys(_PROTOCOL_ERRORS, 0))

    def snapshot(self) -> dict[str, int]:
        """Return all counts by name, with protocol errors by status."""
        counts = asdict(self)
        del counts["protocol_errors"]
        return counts | {f"protocol_error_{status.name.lower()}": count for status, count in self.protocol_errors.items()}


class SessionState(IntEnum):
    """The state of a stream."""

    RECEIVING = 0
    BYPASSED = 1  # the gateway answers itself; the rest of the request is ignored
    DECIDING = 2
    ROUTED = 3
    ANSWERED = 4  # the gateway got an error for the client
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
    BODY = 1  # body or trailers follow
    DONE = 2  # only trailers may follow
    TRAILED = 3


class MessagePart(IntEnum):
    """The parts of a request or response; no body follows those named LAST_."""

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
"""Other transitions are errors, or ignored after the end; a gateway that buffers sends trailers after the end."""

_PLURAL: Final = {MessagePart.HEADERS: "headers", MessagePart.LAST_HEADERS: "headers", MessagePart.TRAILERS: "trailers"}


def next_state(message: str, state: MessageState, part: MessagePart) -> MessageState:
    """Return the state after a part; raises ProtocolError if the part does not fit."""
    following = MESSAGE_TRANSITIONS.get((state, part))
    if following is None:
        raise misplaced(message, state, part)
    return following


def misplaced(message: str, state: MessageState, part: MessagePart) -> ProtocolError:
    """Build the error for a part that does not fit the state."""
    subject = f"{message} {_PLURAL[part]}" if part in _PLURAL else f"a {message} body"
    if part <= MessagePart.LAST_HEADERS:
        return out_of_order(f"{subject} came twice")
    if state is MessageState.IDLE:
        return out_of_order(f"{subject} came before the {message} headers")
    return LateMessage(GrpcStatus.INVALID_ARGUMENT, f"{subject} came after the end of the {message}")


def out_of_order(problem: str) -> ProtocolError:
    """Build the error for a message in the wrong order."""
    return ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"{problem}; the messages of a stream must follow one HTTP request")
