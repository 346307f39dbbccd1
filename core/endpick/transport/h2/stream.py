"""One HTTP/2 stream as the server sees it: its state (RFC 9113 section 5.1), and what is kept for it."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Final

from endpick.extproc.stream import PassingBody, StreamSession
from endpick.transport.h2.errors import InvalidTransitionError
from endpick.transport.h2.grpc import MessageAssembler


class StreamState(IntEnum):
    """The states of RFC 9113 section 5.1, without the two that only server push has."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    """The server has ended its response; the client may still send."""
    HALF_CLOSED_REMOTE = 3
    """The client has ended its request; the server may still send."""
    CLOSED = 4


class StreamEvent(IntEnum):
    """What moves a stream from one state to the next."""

    RECV_HEADERS = 0
    RECV_END_STREAM = 1
    SEND_END_STREAM = 2
    RECV_RST_STREAM = 3
    SEND_RST_STREAM = 4
    CONNECTION_CLOSED = 5
    """Not in the figure of the RFC: a connection takes its streams with it."""


# Plain integers: a member of an enumeration costs several times as much to compare. Literal and Final, so that mypyc compiles them in;
# a test holds them equal to the members.
IDLE: Final = 0
OPEN: Final = 1
HALF_CLOSED_LOCAL: Final = 2
HALF_CLOSED_REMOTE: Final = 3
CLOSED: Final = 4

RECV_HEADERS: Final = 0
RECV_END_STREAM: Final = 1
SEND_END_STREAM: Final = 2
RECV_RST_STREAM: Final = 3
SEND_RST_STREAM: Final = 4
CONNECTION_CLOSED: Final = 5


class _Transitions(dict[tuple[int, int], int]):
    """The state to which an event moves a stream, by state and event.

    Frames that the client may not send in a state are answered with an error before they get here, so to ask for a transition that is not
    in the table is a bug in endpick.
    """

    def __missing__(self, key: tuple[int, int]) -> int:
        state, event = key
        raise InvalidTransitionError(f"{StreamEvent(event).name} on a stream that is {StreamState(state).name}")


NEXT_STATE: Final = _Transitions(
    {
        (IDLE, RECV_HEADERS): OPEN,
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
)


class ResponseState(IntEnum):
    """How far the server is with its response; what it has decided to send may still wait for a window."""

    AWAITED = 0
    STARTED = 1
    """Response headers have been sent."""
    COMPLETE = 2
    """Nothing will be added: END_STREAM is sent once `Stream.pending` is empty."""


AWAITED: Final = 0
STARTED: Final = 1
COMPLETE: Final = 2


class Stream:
    """One stream, from the HEADERS that open it until it is closed.

    `FrameHandler` reads for it, `Streams` runs its session, `Outbox` writes for it.
    """

    __slots__ = (
        "assembler",
        "body_fields",
        "content_left",
        "held_bytes",
        "holds_drain",
        "id",
        "passing",
        "pending",
        "pending_bytes",
        "receive_window",
        "refusal",
        "response",
        "send_window",
        "session",
        "state",
        "task",
        "touched",
        "trailers",
        "wire_id",
    )

    def __init__(self, stream_id: int, receive_window: int, send_window: int, now: float) -> None:
        self.id = stream_id
        self.wire_id = b""
        """The same as in a frame, once a piece has taken the short way."""
        self.state = OPEN
        """A `StreamState`, never IDLE: there is no object before HEADERS have come."""
        self.response = AWAITED
        """A `ResponseState`."""
        self.session: StreamSession | None = None
        """None for a request that is not gRPC, and once the response is complete or the stream is closed."""
        self.passing: PassingBody | None = None
        """What the session lets pass on the short way, see `short_way`."""
        self.task: asyncio.Task[None] | None = None
        """Awaits what the session waits for; cancelled when the stream is closed."""
        self.touched = now
        """When something arrived last."""
        self.body_fields: frozenset[int] = frozenset()
        """See `Method.body_fields`."""
        self.holds_drain = True
        """False: the stream never ends by itself, so a drain ends it."""
        self.receive_window = receive_window
        self.content_left: int | None = None
        """Bytes of the body that `content-length` still promises."""
        self.assembler: MessageAssembler | None = None
        self.held_bytes = 0
        """What the assembler holds, as accounted for in the `MemoryBudget`."""
        self.send_window = send_window
        self.pending: list[memoryview] = []  # no deque, of which even an empty one takes 760 bytes
        """Bytes of the response that flow control or the socket keeps back."""
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """The header block that ends a response of gRPC, to be sent once `pending` is empty."""
        self.refusal: tuple[bytes, bytes] | None = None
        """Header block and body that answer a request that is not gRPC, to be sent once the request has ended."""
