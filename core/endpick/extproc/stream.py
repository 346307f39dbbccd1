"""The interface between a transport and a session: bytes in, bytes out, and how a stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from endpick.requests.model import CloseCause


class GrpcStatus(IntEnum):
    """gRPC status codes that endpick uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    """A message cannot be decoded, or is out of order."""
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    """A limit is exceeded."""
    FAILED_PRECONDITION = 9
    """The gateway's configuration is not supported."""
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class ProtocolError(Exception):
    """The stream cannot go on; the transport ends it with `status` and `message`."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class PassingBody:
    """A response body whose chunks pass unchanged, so a transport may answer them itself.

    Such a chunk is a message that holds a part of the body, not the last, and nothing else.
    """

    __slots__ = ()

    def let_pass(self, piece: bytes) -> None:
        """See a chunk that passes; never raises."""


LetPass = Callable[[PassingBody | None], None]
"""Lets the transport answer chunks itself from now on; None ends that."""


class StreamSession(Protocol):
    """One gRPC stream, which is one HTTP request; no sockets, no event loop."""

    @property
    def waiting(self) -> Awaitable[object] | None:
        """Set after `receive` when the replies depend on a decision that has to wait.

        The transport awaits it and calls `resume` with the result, or `fail` with the exception.
        """

    @property
    def finished(self) -> bool:
        """True when the transport should send the last replies and close the stream with OK."""

    def receive(self, message: bytes) -> Sequence[bytes]:
        """Take one serialised message and return serialised replies in order; also called while `waiting` is set.

        Raises:
            ProtocolError: the message cannot be decoded or is out of order.
        """

    def resume(self, result: object) -> Sequence[bytes]:
        """Return the replies once `waiting` has resolved to `result`, including those to messages received meanwhile.

        Raises:
            ProtocolError: a message received meanwhile was out of order.
        """

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Return the replies after awaiting `waiting` raised."""

    def close(self, cause: CloseCause) -> None:
        """End the stream; idempotent."""


SessionFactory = Callable[[], StreamSession]

_PROTOCOL_ERRORS = (GrpcStatus.INVALID_ARGUMENT, GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.FAILED_PRECONDITION, GrpcStatus.INTERNAL)
_PLAIN = ("requests", "unroutable", "bodies_too_large", "names_too_long", "buffer_exhaustions", "decision_faults", "exchange_faults")


@dataclass(slots=True)
class SessionCounters:
    """Counters shared by all sessions of a listener.

    Attributes:
        requests: Streams that began with request headers.
        unroutable: Requests refused before the director saw them.
        bodies_too_large: Requests whose body exceeds `--max-request-body`.
        names_too_long: Requests refused because of a long model, cache salt or fairness id.
        buffer_exhaustions: Requests refused because undecided bodies use their whole memory budget.
        decision_faults: Requests refused because the decision raised.
        exchange_faults: Exceptions from exchanges: at most one per response, and one from `finish`.
        protocol_errors: Streams ended with an error, by gRPC status.
    """

    requests: int = 0
    unroutable: int = 0
    bodies_too_large: int = 0
    names_too_long: int = 0
    buffer_exhaustions: int = 0
    decision_faults: int = 0
    exchange_faults: int = 0
    protocol_errors: dict[GrpcStatus, int] = field(default_factory=lambda: dict.fromkeys(_PROTOCOL_ERRORS, 0))

    def snapshot(self) -> dict[str, int]:
        """Every count by name; protocol errors as `protocol_error_<status>`."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {f"protocol_error_{status.name.lower()}": count for status, count in self.protocol_errors.items()}
