"""What the server sends on one connection: frames in order, as fast as the windows of the client and the socket allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

from endpick.extproc.stream import LongReply, PassingBody, Reply
from endpick.requests.memory import MemoryBudget
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, H2StreamError
from endpick.transport.h2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    FRAME_HEAD,
    MAX_WINDOW_BYTES,
    Setting,
    headers,
)
from endpick.transport.h2.grpc import MESSAGE_HEAD, MESSAGE_HEAD_BYTES, RESPONSE_HEADERS
from endpick.transport.h2.hpack import EMPTY_TABLE
from endpick.transport.h2.short_way import PASSAGES, Passage
from endpick.transport.h2.stream import AWAITED, COMPLETE, STARTED, Stream

_MESSAGE_FRAME: Final = Struct(">HBBBIBI")
"""Heads of a DATA frame and of the only message in it."""
_LONG_BYTES: Final = 4096
"""A piece of no fewer bytes goes to the socket by itself: to copy it takes longer than the kernel needs for one piece more."""
_UNWRITTEN_BYTES: Final = 1 << 20
"""Of messages at most, between two writes: what the socket does not take then waits at the streams, where it is accounted for."""
_SHARED_BYTES: Final = 2048
"""Short replies that wait are joined up to this: each alone costs two hundred bytes beside its own, which no budget counts."""


class SocketWriter(Protocol):
    """What an outbox needs of a socket: two methods of `asyncio.WriteTransport`."""

    def write(self, data: bytes) -> None:
        """Send it after all that was written before."""

    def writelines(self, list_of_data: list[bytes | memoryview]) -> None:
        """Send all of them, one after another."""


class Outbox:
    """Frames for one client; `take` gives the bytes to write.

    A message that no window holds back costs two list entries. Others wait at their stream, in order, until a WINDOW_UPDATE, a SETTINGS or
    a socket that takes bytes again lets them go.
    """

    def __init__(self, max_stream_output_bytes: int, memory: MemoryBudget, on_sent: Callable[[Stream], None]) -> None:
        self._frames: list[bytes | memoryview] = []
        self._max_stream_output_bytes = max_stream_output_bytes
        self._memory = memory
        self._on_sent = on_sent
        self._ready: dict[int, Stream] = {}
        """Streams that only the connection's window or its socket keeps back; the next in turn comes first."""
        self._has_long = False
        """Whether there are frames of `_LONG_BYTES` or more among them."""
        self._unwritten = 0
        """Bytes of messages among them."""
        self._table_emptied = False
        self.window = DEFAULT_WINDOW_BYTES
        self.stream_window = DEFAULT_WINDOW_BYTES
        """What a new stream starts with."""
        self.max_frame_bytes = DEFAULT_FRAME_BYTES
        self.writable = True
        """False while the socket has taken less than it was given; then messages wait at their streams."""

    def take(self) -> bytes:
        """All frames so far, joined."""
        self._has_long = False
        self._unwritten = 0
        data = b"".join(self._frames)
        self._frames.clear()
        return data

    def write_to(self, socket: SocketWriter) -> None:
        """Write all frames so far, and what waits as long as the socket takes it. Long pieces of messages are not copied for it."""
        frames = self._frames
        while frames:
            if self._has_long:
                socket.writelines(_joined_short(frames))
                self._has_long = False
            else:
                socket.write(b"".join(frames))
            frames.clear()
            self._unwritten = 0
            if self._ready:
                self.push_ready()

    def put(self, frame: bytes) -> None:
        """Send a frame that no window concerns."""
        self._frames.append(frame)

    def send_messages(self, stream: Stream, messages: Sequence[Reply]) -> None:
        """Send gRPC messages, and the response headers before the first.

        Raises:
            H2StreamError: more bytes wait for this client than one stream, or all streams together, may keep waiting.
        """
        if stream.response == AWAITED:
            stream.response = STARTED
            self._put_headers(stream, RESPONSE_HEADERS, end_stream=False)
        queued = 0
        for message in messages:
            if isinstance(message, LongReply):
                queued += self._queue_long(stream, message)
                continue
            length = len(message)
            size = length + MESSAGE_HEAD_BYTES
            fits = size <= stream.send_window and size <= self.window and size <= self.max_frame_bytes and self.writable
            if fits and self._unwritten < _UNWRITTEN_BYTES and not stream.pending:
                stream.send_window -= size
                self.window -= size
                self._unwritten += size
                self._frames.append(_MESSAGE_FRAME.pack(size >> 8, size & 0xFF, DATA, 0, stream.id, 0, length))
                self._frames.append(message)
            else:
                self._queue(stream, MESSAGE_HEAD.pack(0, length), message)
                queued += size
        if queued:
            self._push_new(stream, queued)

    def pass_on(self, stream: Stream, passing: PassingBody, buffer: bytes, start: int, stop: int) -> bool:
        """Let a payload of the length of some message pass on the short way; False, and nothing is done, if it has to take the long one."""
        passage = PASSAGES[stop - start]
        if passage is None:
            passage = PASSAGES[stop - start] = Passage(stop - start)
        size = passage.size
        if not size or stream.held_bytes or stream.content_left is not None:
            return False
        if size > stream.send_window or size > self.window or size > self.max_frame_bytes or not self.writable or stream.pending:
            return False
        piece_at = start + passage.before_bytes
        if buffer[start:piece_at] != passage.before:
            return False
        piece = buffer[piece_at:stop]
        if not stream.wire_id:
            stream.wire_id = stream.id.to_bytes(4, "big")
        stream.send_window -= size
        self.window -= size
        frames = self._frames
        frames.append(passage.frame_head)
        frames.append(stream.wire_id)
        frames.append(passage.instead)
        frames.append(piece)
        passing.let_pass(piece)
        return True

    def finish(self, stream: Stream, trailers: bytes) -> bool:
        """Complete the response with a gRPC status. True if all of it is sent; else it follows what waits, and `on_sent` is called then."""
        block = RESPONSE_HEADERS + trailers if stream.response == AWAITED else trailers
        stream.response = COMPLETE
        if stream.pending:
            stream.trailers = block
            return False
        self._put_headers(stream, block, end_stream=True)
        return True

    def refuse(self, stream: Stream, block: bytes, body: bytes) -> None:
        """Answer a request that is not gRPC and has ended, as plain HTTP."""
        stream.response = COMPLETE
        self._put_headers(stream, block, end_stream=not body)
        if body:
            self._queue(stream, b"", body)
            self._push_new(stream, len(body))
        else:
            self._all_sent(stream)

    def forget(self, stream: Stream) -> None:
        """Drop what waits at a stream that is closed."""
        self._ready.pop(stream.id, None)
        self._memory.hold(-stream.pending_bytes)
        stream.pending_bytes = 0
        stream.pending.clear()

    def close(self) -> None:
        """The socket is gone: send nothing any more, and call nothing."""
        self._frames.clear()
        # Outbox and streams would otherwise keep each other until the garbage collector comes.
        self._on_sent = _ignore

    def apply_settings(self, settings: list[tuple[int, int]], streams: list[Stream]) -> None:
        """Follow the client's SETTINGS.

        Raises:
            H2ConnectionError: a window grows beyond what HTTP/2 can count.
        """
        for setting, value in settings:
            if setting == Setting.MAX_FRAME_SIZE:
                self.max_frame_bytes = min(value, _UNWRITTEN_BYTES)
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
        """The client takes that many more bytes on this connection.

        Raises:
            H2ConnectionError: more than HTTP/2 can count.
        """
        self.window += increment
        if self.window > MAX_WINDOW_BYTES:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE overflows the connection's window")
        self.push_ready()

    def grow_stream_window(self, stream: Stream, increment: int) -> None:
        """The client takes that many more bytes on this stream.

        Raises:
            H2StreamError: more than HTTP/2 can count.
        """
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW_BYTES:
            raise H2StreamError(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "WINDOW_UPDATE overflows the stream's window")
        if stream.pending:
            self._push(stream)

    def push_ready(self) -> None:
        """Send what waits, stream by stream in turn, as far as the connection's window goes."""
        while self._ready and self.window > 0 and self.writable and self._unwritten < _UNWRITTEN_BYTES:
            self._push(self._ready.pop(next(iter(self._ready))))

    def _put_headers(self, stream: Stream, block: bytes, *, end_stream: bool) -> None:
        if not self._table_emptied:
            self._table_emptied = True
            block = EMPTY_TABLE + block
        self._frames.append(headers(stream.id, block, end_stream=end_stream))

    def _queue(self, stream: Stream, head: bytes, body: bytes) -> None:
        pending = stream.pending
        size = len(head) + len(body)
        if size > _SHARED_BYTES:
            pending.append(memoryview(head))
            pending.append(memoryview(body))  # not joined: a long body is copied once, into what is written
        elif pending and len(pending[-1]) + size <= _SHARED_BYTES:
            pending[-1] = memoryview(b"".join((pending[-1], head, body)))
        else:
            pending.append(memoryview(head + body))
        stream.pending_bytes += size

    def _queue_long(self, stream: Stream, reply: LongReply) -> int:
        """How many bytes were queued: of a reply that is sent many times over no more than ends the stream, because they cannot wait."""
        head = MESSAGE_HEAD.pack(0, len(reply))
        size = len(head) + len(reply)
        if reply.times > 1:
            times = min(reply.times, (self._max_stream_output_bytes + 2 * _UNWRITTEN_BYTES) // size + 1)
            stream.pending.append(memoryview((head + reply.whole()) * times))
            size *= times
        else:
            stream.pending.append(memoryview(head))
            stream.pending += [memoryview(part) for part in reply.parts]
        stream.pending_bytes += size
        return size

    def _push_new(self, stream: Stream, size: int) -> None:
        """Send what the windows allow of what waits at one stream, of which `size` bytes are new and not yet accounted for."""
        within_budget = self._push(stream, size)
        if stream.pending_bytes > self._max_stream_output_bytes:
            raise H2StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its replies", "slow_readers")
        if not within_budget and stream.pending:
            raise H2StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "no memory left for replies", "buffer_exhaustions")

    def _push(self, stream: Stream, new: int = 0) -> bool:
        """Send what the windows allow of what waits at one stream, and account for the rest; False if that is too much."""
        pending = stream.pending
        accounted = stream.pending_bytes - new
        while pending and self.writable and self._unwritten < _UNWRITTEN_BYTES:
            room = min(stream.send_window, self.window, self.max_frame_bytes)
            if room <= 0:
                break
            head_at = len(self._frames)
            self._frames.append(b"")
            size = 0
            while pending and size < room:
                piece = pending[0][: room - size]
                if len(piece) == len(pending[0]):
                    del pending[0]
                else:
                    pending[0] = pending[0][len(piece) :]
                self._frames.append(piece)
                size += len(piece)
            self._has_long = self._has_long or size >= _LONG_BYTES
            stream.send_window -= size
            self.window -= size
            self._unwritten += size
            stream.pending_bytes -= size
            flags = END_STREAM if stream.response == COMPLETE and stream.trailers is None and not pending else 0
            self._frames[head_at] = FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, flags, stream.id)
        within_budget = stream.pending_bytes == accounted or self._memory.hold(stream.pending_bytes - accounted)
        if not pending:
            self._ready.pop(stream.id, None)
            self._all_sent(stream)
        elif stream.send_window > 0:
            self._ready[stream.id] = stream
        else:
            self._ready.pop(stream.id, None)
        return within_budget

    def _all_sent(self, stream: Stream) -> None:
        """Nothing waits at the stream any more: send its trailers, if it has them, and tell `Streams`."""
        if stream.trailers is not None:
            self._put_headers(stream, stream.trailers, end_stream=True)
        self._on_sent(stream)


def _joined_short(frames: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The same bytes in fewer pieces: what stands between two long ones is one."""
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


def _ignore(stream: Stream) -> None:
    """Stand in for `on_sent` once the socket is gone."""
