"""The output of one connection, as its windows and the socket allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

from endpick.extproc.stream import PassingBody
from endpick.transport.h2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    FRAME_HEAD,
    MAX_WINDOW_BYTES,
    ErrorCode,
    H2ConnectionError,
    H2StreamError,
    Setting,
    headers,
)
from endpick.transport.h2.headers import EMPTY_TABLE
from endpick.transport.h2.stream import AWAITED, COMPLETE, MESSAGE_HEAD, MESSAGE_HEAD_BYTES, RESPONSE_HEADERS, STARTED, Stream, pass_through

MAX_PENDING_BYTES: Final = 32 * 2**20  # per stream
_MESSAGE_FRAME: Final = Struct(">HBBBIBI")
_LONG_BYTES: Final = 4096  # longer frames are not copied
_SHORT_BYTES: Final = 2048  # joined while pending: a memoryview takes 200 bytes


class SocketWriter(Protocol):
    """The methods of `asyncio.WriteTransport` that `Outbox` calls."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, list_of_data: list[bytes | memoryview]) -> None: ...


class Outbox:
    """Buffers frames for one client, and queues messages at their stream while a window or the socket is full."""

    def __init__(self, on_sent: Callable[[Stream], None]) -> None:
        """`on_sent` is called when a stream has sent everything."""
        self._frames: list[bytes | memoryview] = []
        self._has_long = False
        self._on_sent = on_sent
        self._ready: dict[int, Stream] = {}  # held back, least recently served first
        self._table_emptied = False
        self.window = DEFAULT_WINDOW_BYTES
        self.stream_window = DEFAULT_WINDOW_BYTES
        self.max_frame_bytes = DEFAULT_FRAME_BYTES
        self.writable = True

    def take(self) -> bytes:
        """Return all buffered frames, joined, and empty the buffer."""
        self._has_long = False
        data = b"".join(self._frames)
        self._frames.clear()
        return data

    def write_to(self, socket: SocketWriter) -> None:
        """Write all buffered frames to the socket, and empty the buffer."""
        if not self._frames:
            return
        if self._has_long:
            socket.writelines(_joined_short(self._frames))
            self._has_long = False
        else:
            socket.write(b"".join(self._frames))
        self._frames.clear()

    def put(self, frame: bytes) -> None:
        """Send a frame that is not subject to flow control."""
        self._frames.append(frame)

    def send_messages(self, stream: Stream, messages: Sequence[bytes]) -> None:
        """Send gRPC messages, after the response headers; raises `H2StreamError` for a slow reader."""
        if stream.response is AWAITED:
            stream.response = STARTED
            self._put_headers(stream, RESPONSE_HEADERS, end_stream=False)
        queued = False
        for message in messages:
            length = len(message)
            size = length + MESSAGE_HEAD_BYTES
            fits = size <= stream.send_window and size <= self.window and size <= self.max_frame_bytes and self.writable
            if fits and not stream.pending:
                stream.send_window -= size
                self.window -= size
                self._frames.append(_MESSAGE_FRAME.pack(size >> 8, size & 0xFF, DATA, 0, stream.id, 0, length))
                self._frames.append(message)
            else:
                _queue(stream, MESSAGE_HEAD.pack(0, length), message)
                queued = True
        if queued:
            self._push(stream)
            if stream.pending_bytes > MAX_PENDING_BYTES:
                raise H2StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its replies", "slow_readers")

    def pass_on(self, stream: Stream, passing: PassingBody, buffer: bytes, start: int, stop: int) -> bool:
        """Answer a body piece unchanged; returns False, without effect, if it has to be parsed."""
        heads = pass_through(stop - start)
        size = heads.size
        if not size or stream.assembler is not None or stream.content_left is not None:
            return False
        if size > stream.send_window or size > self.window or size > self.max_frame_bytes or not self.writable or stream.pending:
            return False
        piece_at = start + heads.head_bytes
        if buffer[start:piece_at] != heads.head:
            return False
        piece = buffer[piece_at:stop]
        stream.send_window -= size
        self.window -= size
        frames = self._frames
        frames.append(heads.frame_head)
        frames.append(stream.wire_id)
        frames.append(heads.reply_head)
        frames.append(piece)
        passing.let_pass(piece)
        return True

    def finish(self, stream: Stream, trailers: bytes) -> bool:
        """Complete the response; returns False if the trailers wait for pending messages."""
        block = RESPONSE_HEADERS + trailers if stream.response is AWAITED else trailers
        stream.response = COMPLETE
        if stream.pending:
            stream.trailers = block
            return False
        self._put_headers(stream, block, end_stream=True)
        return True

    def refuse(self, stream: Stream, block: bytes, body: bytes) -> None:
        """Send a plain HTTP response."""
        stream.response = COMPLETE
        self._put_headers(stream, block, end_stream=not body)
        if body:
            _queue(stream, b"", body)
            self._push(stream)
        else:
            self._all_sent(stream)

    def forget(self, stream: Stream) -> None:
        """Drop the pending bytes of a closed stream."""
        self._ready.pop(stream.id, None)
        stream.pending_bytes = 0
        stream.pending.clear()

    def apply_settings(self, settings: list[tuple[int, int]], streams: list[Stream]) -> None:
        """Apply the client's SETTINGS; raises `H2ConnectionError` if a window overflows."""
        for setting, value in settings:
            if setting == Setting.MAX_FRAME_SIZE:
                self.max_frame_bytes = value
            elif setting == Setting.INITIAL_WINDOW_SIZE:
                growth = value - self.stream_window
                self.stream_window = value
                for stream in streams:
                    stream.send_window += growth
                    if stream.send_window > MAX_WINDOW_BYTES:
                        raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS overflow the window of a stream")
                    if stream.pending:
                        self._push(stream)

    def grow_window(self, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the connection."""
        self.window += increment
        if self.window > MAX_WINDOW_BYTES:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE overflows the connection's window")
        self.push_ready()

    def grow_stream_window(self, stream: Stream, increment: int) -> None:
        """Apply a WINDOW_UPDATE of a stream."""
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW_BYTES:
            raise H2StreamError(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE overflows the stream's window")
        if stream.pending:
            self._push(stream)

    def push_ready(self) -> None:
        """Send pending bytes while the connection window allows."""
        while self._ready and self.window > 0 and self.writable:
            self._push(self._ready.pop(next(iter(self._ready))))

    def _put_headers(self, stream: Stream, block: bytes, *, end_stream: bool) -> None:
        if not self._table_emptied:
            self._table_emptied = True
            block = EMPTY_TABLE + block
        self._frames.append(headers(stream.id, block, end_stream=end_stream))

    def _push(self, stream: Stream) -> None:
        pending = stream.pending
        while pending and self.writable:
            room = min(stream.send_window, self.window, self.max_frame_bytes)
            if room <= 0:
                break
            head_at = len(self._frames)
            self._frames.append(b"")
            size = 0
            while pending and size < room:
                piece = pending[0][: room - size]
                if len(piece) == len(pending[0]):
                    pending.popleft()
                else:
                    pending[0] = pending[0][len(piece) :]
                self._frames.append(piece)
                size += len(piece)
            self._has_long = self._has_long or size >= _LONG_BYTES
            stream.send_window -= size
            self.window -= size
            stream.pending_bytes -= size
            flags = END_STREAM if stream.response is COMPLETE and stream.trailers is None and not pending else 0
            self._frames[head_at] = FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, flags, stream.id)
        self._ready.pop(stream.id, None)
        if not pending:
            self._all_sent(stream)
        elif stream.send_window > 0:
            self._ready[stream.id] = stream

    def _all_sent(self, stream: Stream) -> None:
        if stream.trailers is not None:
            self._put_headers(stream, stream.trailers, end_stream=True)
        self._on_sent(stream)


def _queue(stream: Stream, head: bytes, body: bytes) -> None:
    pending = stream.pending
    size = len(head) + len(body)
    if size > _SHORT_BYTES:
        pending.append(memoryview(head))
        pending.append(memoryview(body))
    elif pending and len(pending[-1]) + size <= _SHORT_BYTES:
        pending[-1] = memoryview(b"".join((pending[-1], head, body)))
    else:
        pending.append(memoryview(head + body))
    stream.pending_bytes += size


def _joined_short(frames: list[bytes | memoryview]) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    short: list[bytes | memoryview] = []
    for frame in frames:
        if len(frame) < _LONG_BYTES:
            short.append(frame)
            continue
        if short:
            pieces.append(b"".join(short))
            short = []
        pieces.append(frame)
    if short:
        pieces.append(b"".join(short))
    return pieces
