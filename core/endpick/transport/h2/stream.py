"""One HTTP/2 stream: its state machine (RFC 9113 section 5.1) and its data."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final

from endpick.extproc.stream import PassingBody, StreamSession
from endpick.transport.h2.errors import InvalidTransitionError
from endpick.transport.h2.grpc import MessageAssembler


class StreamState(IntEnum):
    """The states of RFC 9113 section 5.1 without those of server push. A stream without a `Stream` object is idle."""

    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4


class StreamEvent(IntEnum):
    """The events that move a stream to another state."""

    RECV_END_STREAM = 1
    SEND_END_STREAM = 2
    RECV_RST_STREAM = 3
    SEND_RST_STREAM = 4
    CONNECTION_CLOSED = 5


OPEN: Final = StreamState.OPEN
HALF_CLOSED_LOCAL: Final = StreamState.HALF_CLOSED_LOCAL
HALF_CLOSED_REMOTE: Final = StreamState.HALF_CLOSED_REMOTE
CLOSED: Final = StreamState.CLOSED

RECV_END_STREAM: Final = StreamEvent.RECV_END_STREAM
SEND_END_STREAM: Final = StreamEvent.SEND_END_STREAM
RECV_RST_STREAM: Final = StreamEvent.RECV_RST_STREAM
SEND_RST_STREAM: Final = StreamEvent.SEND_RST_STREAM
CONNECTION_CLOSED: Final = StreamEvent.CONNECTION_CLOSED

_TRANSITIONS: Final = {
    (OPEN, RECV_END_STREAM): HALF_CLOSED_REMOTE,
    (OPEN, SEND_END_STREAM): HALF_CLOSED_LOCAL,
    (OPEN, RECV_RST_STREAM): CLOSED,
    (OPEN, SEND_RST_STREAM): CLOSED,
    (OPEN, CONNECTION_CLOSED): CLOSED,
    (HALF_CLOSED_LOCAL, RECV_END_STREAM): CLOSED,
    (HALF_CLOSED_LOCAL, RECV_RST_STREAM): CLOSED,
    (HALF_CLOSED_LOCAL, SEND_RST_STREAM): CLOSED,
    (HALF_CLOSED_LOCAL, CONNECTION_CLOSED): CLOSED,
    (HALF_CLOSED_REMOTE, SEND_END_STREAM): CLOSED,
    (HALF_CLOSED_REMOTE, RECV_RST_STREAM): CLOSED,
    (HALF_CLOSED_REMOTE, SEND_RST_STREAM): CLOSED,
    (HALF_CLOSED_REMOTE, CONNECTION_CLOSED): CLOSED,
}


class ResponseState(IntEnum):
    """Progress of the response; some of it may still wait for a flow-control window."""

    AWAITED = 0
    STARTED = 1
    COMPLETE = 2
    """Nothing more is added: END_STREAM follows once `Stream.pending` is empty."""


AWAITED: Final = ResponseState.AWAITED
STARTED: Final = ResponseState.STARTED
COMPLETE: Final = ResponseState.COMPLETE


class Stream:
    """One stream, from its HEADERS until it is closed."""

    def __init__(self, stream_id: int, receive_window: int, send_window: int) -> None:
        self.id = stream_id
        self.wire_id = stream_id.to_bytes(4, "big")
        self.state: StreamState = OPEN
        self.response: ResponseState = AWAITED
        self.session: StreamSession | None = None
        """None if the request is not gRPC, the response is complete or the stream closed."""
        self.passing: PassingBody | None = None
        """Set while pieces of the response body pass unchanged; see `passages`."""
        self.task: asyncio.Future[Any] | None = None
        self.deadline: float | None = None
        self.holds_drain = True
        """False for a stream that never ends by itself; a drain ends it at once."""
        self.receive_window = receive_window
        self.send_window = send_window
        self.content_left: int | None = None
        """Bytes of the body that `content-length` still promises."""
        self.assembler: MessageAssembler | None = None
        """Set while a message is incomplete."""
        self.pending: list[memoryview] = []
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """Header block that ends the response once `pending` is empty."""
        self.refusal: tuple[bytes, bytes] | None = None
        """Header block and body that answer a request that is not gRPC, once it has ended."""

    def move(self, event: StreamEvent) -> None:
        """Change the state."""
        following = _TRANSITIONS.get((self.state, event))
        if following is None:
            raise InvalidTransitionError(f"{event.name} on a stream that is {self.state.name}")
        self.state = following
