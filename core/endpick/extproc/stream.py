"""What a transport knows of the session it feeds: bytes in, bytes out, and how a stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from endpick.host.failures import CALL_FAILURES
from endpick.requests.long_body import LongBody
from endpick.requests.model import CloseCause


class GrpcStatus(IntEnum):
    """The gRPC status codes with which endpick ends a stream."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    """A message that cannot be decoded, or that cannot come here."""
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    """More than a limit allows."""
    FAILED_PRECONDITION = 9
    """The gateway is configured in a way we cannot serve."""
    UNIMPLEMENTED = 12
    INTERNAL = 13
    """We are at fault."""
    UNAVAILABLE = 14


SESSION_FAILURES = CALL_FAILURES
"""What a session may throw at its transport without harm to other streams: a plugin's answer may raise where endpick looks at it."""


class ProtocolError(Exception):
    """The stream cannot go on; the transport ends it with this gRPC status.

    Attributes:
        status: gRPC status code, a `GrpcStatus`.
        message: what the gateway did that it may not do.
    """

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class PassingBody:
    """A response body whose pieces pass as they are: a transport may answer each itself, and shows it here.

    A piece that may be answered so is a message that holds a part of the body, not the last one, and nothing else.
    """

    __slots__ = ()

    def let_pass(self, piece: bytes) -> None:
        """See a piece that passes; never raises."""


LetPass = Callable[[PassingBody | None], None]
"""What a transport gives a session that may let it answer pieces; None: no more from now on."""


class LongMessage:
    """A message whose body is long: what is left of it without the body's bytes, and those in the pieces in which they came.

    To join them, and to have protobuf read them, would hold the event loop for a tenth of a second.
    """

    __slots__ = ("_size", "body", "rest")

    def __init__(self, rest: bytes, body: LongBody, size: int) -> None:
        """`rest` is a message of its own, whose last field is the `HttpBody` without its bytes; `size` is that of the whole."""
        self.rest = rest
        self.body = body
        self._size = size

    def __len__(self) -> int:
        return self._size


class LongReply:
    """A serialised reply with a long piece of a body, which is not copied into it; or one that is sent many times over."""

    __slots__ = ("_size", "parts", "times")

    def __init__(self, parts: Sequence[bytes | memoryview], times: int = 1) -> None:
        """What it consists of, in order, and how often it is to be sent."""
        self.parts = parts
        self.times = times
        self._size = sum([len(part) for part in parts])

    def __len__(self) -> int:
        return self._size

    def whole(self) -> bytes:
        """All of it as one."""
        return b"".join(self.parts)


Message = bytes | LongMessage
Reply = bytes | LongReply


class StreamSession(Protocol):
    """One gRPC stream, which is one HTTP request; no sockets, no event loop."""

    @property
    def waiting(self) -> Awaitable[object] | None:
        """Set after `receive` when the replies depend on something to await.

        The transport awaits it and calls `resume` with the result, or `fail` with the exception.
        """

    @property
    def finished(self) -> bool:
        """True once the stream is to be closed with OK after the replies that were returned have been sent."""

    def receive(self, message: bytes) -> Sequence[Reply]:
        """One serialised message in, serialised replies out, in order; also while `waiting`.

        Raises:
            ProtocolError: the message cannot be decoded or comes out of order.
        """

    def resume(self, result: object) -> Sequence[Reply]:
        """Replies once `waiting` has resolved to `result`, those to messages received meanwhile included.

        Raises:
            ProtocolError: a message received meanwhile came out of order.
        """

    def fail(self, exception: BaseException) -> Sequence[Reply]:
        """Replies after awaiting `waiting` raised."""

    def close(self, cause: CloseCause) -> None:
        """The stream is over, whatever happened; idempotent."""


class LongBodySession(StreamSession, Protocol):
    """The session of a method whose messages have bodies, which may be long."""

    def receive_long(self, message: LongMessage) -> Sequence[Reply]:
        """As `receive`."""


SessionFactory = Callable[[], StreamSession]


_PROTOCOL_ERRORS = (GrpcStatus.INVALID_ARGUMENT, GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.FAILED_PRECONDITION, GrpcStatus.INTERNAL)
"""The statuses with which an ext_proc session ends a stream."""
_PLAIN = (
    "requests",
    "unroutable",
    "bodies_too_large",
    "names_too_long",
    "messages_too_early",
    "buffer_exhaustions",
    "decision_faults",
    "exchange_faults",
)


@dataclass(slots=True)
class SessionCounters:
    """Plain numbers that only grow; one object is shared by all sessions of a listener."""

    requests: int = 0
    """Streams that began with request headers."""
    unroutable: int = 0
    """Requests refused before the director saw them: their body, or what all requests hold, is over the limit."""
    bodies_too_large: int = 0
    """Requests whose body, or what came of them while they waited for a decision, is longer than `--max-request-body`."""
    names_too_long: int = 0
    """Requests refused because their model, cache salt or fairness id is longer than a name may be."""
    messages_too_early: int = 0
    """Streams ended because more messages came while the decision was awaited than a gateway sends then."""
    buffer_exhaustions: int = 0
    """Requests refused because all requests that wait together hold `max_held_bytes`."""
    decision_faults: int = 0
    """Requests refused because deciding raised."""
    exchange_faults: int = 0
    """Exceptions from exchanges: at most one per response, and one from `finish`."""
    protocol_errors: dict[GrpcStatus, int] = field(default_factory=lambda: dict.fromkeys(_PROTOCOL_ERRORS, 0))
    """Streams that we ended, by the status we gave."""

    def snapshot(self) -> dict[str, int]:
        """Every count by name; protocol errors one by one, as `protocol_error_<status>`."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {f"protocol_error_{status.name.lower()}": count for status, count in self.protocol_errors.items()}
