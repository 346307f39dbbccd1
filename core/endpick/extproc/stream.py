"""What a transport knows of the session it feeds: bytes in, bytes out, and how a stream ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Protocol

from endpick.requests.decision import CloseCause

__all__ = ["CloseCause", "ProtocolError", "SessionFactory", "Status", "StreamSession"]


class Status(IntEnum):
    """The gRPC status codes with which a session ends a stream."""

    INVALID_ARGUMENT = 3
    """A message that cannot be decoded, or that cannot come here."""
    RESOURCE_EXHAUSTED = 8
    """More than a limit allows."""
    FAILED_PRECONDITION = 9
    """The gateway is configured in a way we cannot serve."""
    INTERNAL = 13
    """We are at fault."""


class ProtocolError(Exception):
    """The stream cannot go on; the transport ends it with this gRPC status.

    Attributes:
        status: gRPC status code, usually a `Status`.
        message: what the gateway did that it may not do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


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

    def receive(self, message: bytes) -> Sequence[bytes]:
        """One serialised message in, serialised replies out, in order; also while `waiting`.

        Raises:
            ProtocolError: the message cannot be decoded or comes out of order.
        """

    def resume(self, result: object) -> Sequence[bytes]:
        """Replies once `waiting` has resolved to `result`, those to messages received meanwhile included.

        Raises:
            ProtocolError: a message received meanwhile came out of order.
        """

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Replies after awaiting `waiting` raised."""

    def close(self, cause: CloseCause) -> None:
        """The stream is over, whatever happened; idempotent."""


SessionFactory = Callable[[], StreamSession]
