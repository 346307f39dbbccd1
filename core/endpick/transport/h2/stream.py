"""One HTTP/2 stream as the server sees it."""

from __future__ import annotations

import asyncio
from collections import deque

from endpick.extproc.stream import StreamSession
from endpick.transport.h2.grpc import MessageAssembler

__all__ = ["Stream"]


class Stream:
    """State of one stream, shared by what reads for it (`Connection`), runs its session (`Streams`) and writes for it (`Outbox`)."""

    __slots__ = (
        "answered",
        "assembler",
        "content_left",
        "half_closed",
        "held_bytes",
        "holds_drain",
        "id",
        "over",
        "pending",
        "pending_bytes",
        "receive_window",
        "refusal",
        "send_window",
        "session",
        "task",
        "touched",
        "trailers",
    )

    def __init__(self, stream_id: int, session: StreamSession | None, receive_window: int, send_window: int, now: float) -> None:
        self.id = stream_id
        self.session = session
        """None for a request that is not gRPC, or once the session is closed and only replies are left to send."""
        self.receive_window = receive_window
        self.send_window = send_window
        self.touched = now
        """When something arrived last."""
        self.half_closed = False
        """The client has sent all it will."""
        self.answered = False
        """Response headers have been sent."""
        self.over = False
        """Gone from the connection; a task that still awaits for it must not go on."""
        self.holds_drain = True
        self.assembler: MessageAssembler | None = None
        self.held_bytes = 0
        """What the assembler holds, as accounted for."""
        self.pending: deque[memoryview] = deque()
        """Bytes of messages that flow control keeps back."""
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """To be sent once `pending` is empty."""
        self.refusal: tuple[bytes, bytes] | None = None
        """Header block and body that answer a request that is not gRPC, once it has ended."""
        self.content_left: int | None = None
        """What `content-length` still promises."""
        self.task: asyncio.Task[None] | None = None
