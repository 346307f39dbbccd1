"""One HTTP/2 stream, and the gRPC messages and statuses it carries."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import IntEnum
from struct import Struct
from typing import Any, Final
from urllib.parse import quote_from_bytes

from endpick.extproc.replies import piece_heads
from endpick.extproc.stream import GrpcStatus, PassingBody, StreamSession
from endpick.transport.h2.frames import DATA, FRAME_HEAD, InvalidTransitionError
from endpick.transport.h2.headers import encode

MESSAGE_HEAD: Final = Struct(">BI")
MESSAGE_HEAD_BYTES: Final = 5

RESPONSE_HEADERS: Final = encode(((b":status", b"200"), (b"content-type", b"application/grpc")))


class MessageTooLargeError(Exception):
    """Raised if a message exceeds the maximum size."""


class CompressedMessageError(Exception):
    """Raised for a compressed message, as compression is never negotiated."""


class MessageAssembler:
    """Assembles messages cut by DATA frames, or too long for the fast path."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._head = b""
        self._missing = -1  # -1 between messages
        self._message = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no incomplete message is buffered."""
        return self._missing < 0 and not self._head

    def feed(self, buffer: bytes, start: int, stop: int) -> list[bytes]:
        """Return the messages completed by `buffer[start:stop]`; raises for large or compressed ones."""
        messages: list[bytes] = []
        position = start
        while position < stop:
            if self._missing < 0:
                end = min(stop, position + MESSAGE_HEAD_BYTES - len(self._head))
                self._head += buffer[position:end]
                position = end
                if len(self._head) < MESSAGE_HEAD_BYTES:
                    break
                self._begin_message()
            end = min(stop, position + self._missing)
            self._message += memoryview(buffer)[position:end]
            self._missing -= end - position
            position = end
            if not self._missing:
                messages.append(self._end_message())
        return messages

    def _begin_message(self) -> None:
        compressed, length = MESSAGE_HEAD.unpack(self._head)
        if compressed:
            raise CompressedMessageError
        if length > self._max_message_bytes:
            raise MessageTooLargeError(f"a message of {length} bytes, the maximum is {self._max_message_bytes}")
        self._head = b""
        self._missing = length

    def _end_message(self) -> bytes:
        self._missing = -1
        message = bytes(self._message)
        self._message.clear()
        return message


def trailers(status: int, message: str = "") -> bytes:
    """Encode the header block of a gRPC status and its message."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        # The gRPC protocol percent-encodes everything but printable ASCII.
        printable = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
        fields.append((b"grpc-message", quote_from_bytes(message.encode(), printable).encode()))
    return encode(fields)


OK_TRAILERS: Final = trailers(GrpcStatus.OK)


MAX_PAYLOAD_BYTES: Final = 4096  # longer ones take the usual path


class PassThrough:
    """The fast path of streamed response bodies: the bytes around a piece depend on its length only, so nothing is parsed."""

    def __init__(self, payload_bytes: int) -> None:
        head, head_bytes, reply_head = piece_heads(payload_bytes - MESSAGE_HEAD_BYTES)
        message_bytes = len(reply_head) + payload_bytes - MESSAGE_HEAD_BYTES - head_bytes
        self.head = MESSAGE_HEAD.pack(0, payload_bytes - MESSAGE_HEAD_BYTES) + head
        self.head_bytes = len(self.head)
        self.size = MESSAGE_HEAD_BYTES + message_bytes if reply_head else 0  # of the reply's payload; 0 if no piece has this length
        self.frame_head = FRAME_HEAD.pack(self.size >> 8, self.size & 0xFF, DATA, 0, 0)[:5]
        self.reply_head = MESSAGE_HEAD.pack(0, message_bytes) + reply_head


_PASS_THROUGHS: Final[list[PassThrough | None]] = [None] * (MAX_PAYLOAD_BYTES + 1)


def pass_through(payload_bytes: int) -> PassThrough:
    """Return the cached pass-through for a payload of at most `MAX_PAYLOAD_BYTES`."""
    found = _PASS_THROUGHS[payload_bytes]
    if found is None:
        found = _PASS_THROUGHS[payload_bytes] = PassThrough(payload_bytes)
    return found


class StreamState(IntEnum):
    """RFC 9113 section 5.1, without server push. A stream without an object is idle."""

    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4


class StreamEvent(IntEnum):
    """Events that change the state of a stream."""

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
    """How much of the response has been passed to the outbox."""

    AWAITED = 0
    STARTED = 1
    COMPLETE = 2  # messages may still be pending; END_STREAM follows


AWAITED: Final = ResponseState.AWAITED
STARTED: Final = ResponseState.STARTED
COMPLETE: Final = ResponseState.COMPLETE


class Stream:
    """One HTTP/2 stream with its windows, its session, and replies that wait to be sent."""

    def __init__(self, stream_id: int, receive_window: int, send_window: int) -> None:
        self.id = stream_id
        self.wire_id = stream_id.to_bytes(4, "big")
        self.state: StreamState = OPEN
        self.response: ResponseState = AWAITED
        self.session: StreamSession | None = None  # None if not gRPC, complete or closed
        self.passing: PassingBody | None = None  # set while pieces pass unchanged
        self.task: asyncio.Future[Any] | None = None
        self.deadline: float | None = None
        self.holds_drain = True
        self.receive_window = receive_window
        self.send_window = send_window
        self.content_left: int | None = None  # left of `content-length`
        self.assembler: MessageAssembler | None = None  # set while a message is incomplete
        self.pending: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.trailers: bytes | None = None  # sent once `pending` is empty
        self.refusal: tuple[bytes, bytes] | None = None  # sent at the end of a request that is not gRPC

    def move(self, event: StreamEvent) -> None:
        """Apply an event to the state; raises `InvalidTransitionError` if it does not fit."""
        following = _TRANSITIONS.get((self.state, event))
        if following is None:
            raise InvalidTransitionError(f"{event.name} on a stream that is {self.state.name}")
        self.state = following
