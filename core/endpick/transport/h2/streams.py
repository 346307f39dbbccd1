"""The sessions of one connection: opened, fed, resumed and closed exactly once each, however their streams end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from endpick.extproc.stream import CloseCause, ProtocolError, StreamSession
from endpick.transport.counters import TransportCounters
from endpick.transport.h2.budget import MemoryBudget
from endpick.transport.h2.deadlines import Deadlines
from endpick.transport.h2.faults import ErrorCode, H2StreamError
from endpick.transport.h2.frames import rst_stream, window_update
from endpick.transport.h2.grpc import OK_TRAILERS, Status, trailers
from endpick.transport.h2.outbox import Outbox
from endpick.transport.h2.refusals import refusal_of
from endpick.transport.h2.request import RequestHead
from endpick.transport.h2.stream import Stream
from endpick.transport.limits import Limits
from endpick.transport.server import Methods

__all__ = ["Spawn", "Streams"]

logger = logging.getLogger(__name__)

Spawn = Callable[[Stream, Awaitable[object]], None]
"""Have somebody await this for the stream and then call `Streams.resume` or `Streams.fail`; sets `Stream.task`."""

_REMEMBERED_STREAMS = 1024


class Streams:
    """Streams of one connection by id, and what their sessions say."""

    def __init__(self, methods: Methods, limits: Limits, counters: TransportCounters, memory: MemoryBudget, spawn: Spawn) -> None:
        self._methods = methods
        self._limits = limits
        self._counters = counters
        self._memory = memory
        self._spawn = spawn
        self._deadlines = Deadlines()
        self.outbox = Outbox(limits.max_stream_output_bytes, memory, self._sent)
        self.open: dict[int, Stream] = {}
        self.closed: dict[int, bool] = {}
        """The last streams that ended; True if by us alone, so that the client may not know yet."""
        self.forgotten_id = 0
        """No stream up to this one is remembered for certain."""
        self.last_id = 0
        """The highest stream that the client has opened; higher ones are idle."""
        self.accepting = True
        """New streams are welcome."""

    def start(self, stream_id: int, head: RequestHead, now: float, *, half_closed: bool) -> None:
        """Open the session that a request asks for, or prepare to refuse it."""
        stream = Stream(stream_id, None, self._limits.stream_window_bytes, self.outbox.stream_window, now)
        stream.content_left = head.content_length
        stream.half_closed = half_closed
        self.open[stream_id] = stream
        self._counters.streams_opened += 1
        refusal = refusal_of(head)
        if refusal is not None:
            self._counters.not_grpc += 1
            stream.refusal = refusal
        else:
            self._open_session(stream, head, now)
        if half_closed and not stream.over:
            self.half_close(stream)

    def deliver(self, stream: Stream, session: StreamSession, message: bytes) -> None:
        """Hand one message to its session and send the replies."""
        self._counters.messages_received += 1
        try:
            replies = session.receive(message)
        except Exception as error:
            self._end_with_exception(stream, error)
            return
        if replies or session.finished or session.waiting is not None or stream.half_closed:
            self._go_on(stream, session, replies)

    def resume(self, stream: Stream, result: object) -> None:
        """What the session waited for is here."""
        session = stream.session
        stream.task = None
        if stream.over or session is None:
            return
        try:
            replies = session.resume(result)
        except Exception as error:
            self._end_with_exception(stream, error)
        else:
            self._go_on_alone(stream, session, replies)

    def fail(self, stream: Stream, exception: BaseException) -> None:
        """What the session waited for raised."""
        session = stream.session
        stream.task = None
        if stream.over or session is None:
            return
        try:
            replies = session.fail(exception)
        except Exception as error:
            self._end_with_exception(stream, error)
        else:
            self._go_on_alone(stream, session, replies)

    def half_close(self, stream: Stream) -> None:
        """The client has sent all it will."""
        stream.half_closed = True
        if stream.refusal is not None:
            self.outbox.refuse(stream, *stream.refusal)
        elif stream.trailers is not None:
            return  # it has its status, which waits behind replies
        elif stream.assembler is not None and stream.assembler.held_bytes:
            self.end(stream, CloseCause.ERROR, Status.INVALID_ARGUMENT, "the stream ends within a message")
        elif stream.session is not None and stream.session.waiting is None:
            self.end(stream, CloseCause.END)

    def end(self, stream: Stream, cause: CloseCause, status: int = Status.OK, message: str = "") -> None:
        """Close the session and give the stream its status, after the replies that still wait for the client."""
        self._close_session(stream, cause)
        self.outbox.finish(stream, OK_TRAILERS if status == Status.OK else trailers(status, message[:1000]))

    def end_all(self, cause: CloseCause, status: int, message: str, *, endless_only: bool = False) -> None:
        """End every stream, or only those that drain does not wait for."""
        for stream in list(self.open.values()):
            if stream.trailers is None and not (endless_only and stream.holds_drain):
                self.end(stream, cause, status, message)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream, known or not, with RST_STREAM: its client broke the rules."""
        self.outbox.put(rst_stream(stream_id, code))
        stream = self.open.get(stream_id)
        if stream is None:
            self._remember(stream_id, by_us=True)
        else:
            self._close_session(stream, CloseCause.ERROR)
            self._drop(stream, by_us=True)

    def peer_reset(self, stream: Stream) -> None:
        """The client ended the stream with RST_STREAM."""
        self._counters.streams_reset_by_peer += 1
        self._close_session(stream, CloseCause.RESET)
        self._drop(stream, by_us=False)

    def lose(self) -> None:
        """The connection is gone, and every stream with it."""
        for stream in list(self.open.values()):
            self._close_session(stream, CloseCause.DISCONNECT)
            self._drop(stream, by_us=False)

    def hold(self, stream: Stream, size: int) -> None:
        """Account for the part of a message that waits for its end.

        Raises:
            H2StreamError: all connections together hold too much.
        """
        growth = size - stream.held_bytes
        stream.held_bytes = size
        if not self._memory.hold(growth):
            raise H2StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "no memory left for messages", "buffer_exhaustions")

    def credit(self, stream: Stream) -> None:
        """Let the client send more, unless its replies do not get away or a decision is awaited: then its window bounds what it sends."""
        size = self._limits.stream_window_bytes
        if stream.receive_window <= size >> 1 and not stream.pending and stream.task is None and not stream.half_closed:
            self.outbox.put(window_update(stream.id, size - stream.receive_window))
            stream.receive_window = size

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return self._deadlines.next

    def expire(self, now: float) -> None:
        """End the streams whose `grpc-timeout` has passed."""
        for stream_id in self._deadlines.due(now):
            stream = self.open.get(stream_id)
            if stream is not None and stream.session is not None:
                self._counters.deadlines_exceeded += 1
                self.end(stream, CloseCause.RESET, Status.DEADLINE_EXCEEDED, "the deadline that the client set has passed")

    def expire_idle(self, now: float) -> None:
        """End the streams on which nothing has arrived for too long."""
        oldest = now - self._limits.max_stream_idle_seconds
        for stream in [stream for stream in self.open.values() if stream.touched < oldest and stream.holds_drain]:
            self._counters.idle_streams += 1
            self._close_session(stream, CloseCause.ERROR)
            self.outbox.put(rst_stream(stream.id, ErrorCode.CANCEL))
            self._drop(stream, by_us=True)

    def _open_session(self, stream: Stream, head: RequestHead, now: float) -> None:
        method = self._methods.get(head.path)
        if method is None:
            self._counters.unknown_methods += 1
            self.end(stream, CloseCause.ERROR, Status.UNIMPLEMENTED, f"no method {head.path[:200]}")
            return
        stream.holds_drain = method.holds_drain
        try:
            stream.session = method.open_session()
        except Exception as error:
            self._end_with_exception(stream, error)
        if head.timeout_seconds is not None:
            self._deadlines.add(now + head.timeout_seconds, stream.id, self.open)

    def _go_on_alone(self, stream: Stream, session: StreamSession, replies: Sequence[bytes]) -> None:
        """As `_go_on`, outside the reading of frames, so that nobody else catches a fault."""
        try:
            self._go_on(stream, session, replies)
            if not stream.over:
                self.credit(stream)
        except H2StreamError as fault:
            fault.count(self._counters)
            self.reset(stream.id, fault.code)

    def _go_on(self, stream: Stream, session: StreamSession, replies: Sequence[bytes]) -> None:
        for reply in replies:
            self.outbox.reply(stream, reply)
        self._counters.messages_sent += len(replies)
        if session.finished:
            self.end(stream, CloseCause.END)
            return
        waiting = session.waiting
        if waiting is None:
            if stream.half_closed:
                self.end(stream, CloseCause.END)
        elif stream.task is None:
            self._spawn(stream, waiting)

    def _end_with_exception(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            self._counters.session_refusals += 1
            self.end(stream, CloseCause.ERROR, error.status, error.message)
        else:
            self._counters.session_faults += 1
            logger.error("a stream session failed; the stream ends with INTERNAL", exc_info=error)
            self.end(stream, CloseCause.ERROR, Status.INTERNAL, "endpick failed on this stream; its log says why")

    def _close_session(self, stream: Stream, cause: CloseCause) -> None:
        session, stream.session = stream.session, None
        if stream.task is not None:
            stream.task.cancel()
            stream.task = None
        if session is not None:
            try:
                session.close(cause)
            except Exception:
                self._counters.session_faults += 1
                logger.exception("a stream session failed while being closed")

    def _sent(self, stream: Stream) -> None:
        """Everything the outbox had for the stream is on its way."""
        if stream.trailers is not None or stream.refusal is not None:
            self._drop(stream, by_us=not stream.half_closed)
        else:
            self.credit(stream)

    def _drop(self, stream: Stream, *, by_us: bool) -> None:
        stream.over = True
        del self.open[stream.id]
        self._counters.streams_closed += 1
        self.outbox.forget(stream)
        if stream.held_bytes:
            self._memory.hold(-stream.held_bytes)
            stream.held_bytes = 0
        self._remember(stream.id, by_us=by_us)

    def _remember(self, stream_id: int, *, by_us: bool) -> None:
        self.closed[stream_id] = by_us
        if len(self.closed) > _REMEMBERED_STREAMS:
            oldest = next(iter(self.closed))
            del self.closed[oldest]
            self.forgotten_id = max(self.forgotten_id, oldest)
