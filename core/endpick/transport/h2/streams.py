"""The streams of one connection and their sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from endpick.extproc.stream import GrpcStatus, ProtocolError, StreamSession
from endpick.requests.model import CloseCause
from endpick.transport.h2.frames import STREAM_WINDOW_BYTES, ErrorCode, H2StreamError, rst_stream, window_update
from endpick.transport.h2.headers import RequestHead
from endpick.transport.h2.send import Outbox
from endpick.transport.h2.stream import (
    CLOSED,
    COMPLETE,
    CONNECTION_CLOSED,
    HALF_CLOSED_REMOTE,
    OK_TRAILERS,
    OPEN,
    RECV_END_STREAM,
    SEND_END_STREAM,
    SEND_RST_STREAM,
    Stream,
    StreamEvent,
    trailers,
)
from endpick.transport.limits import TransportCounters
from endpick.transport.methods import Methods

logger = logging.getLogger(__name__)

Spawn = Callable[[Stream, Awaitable[object]], None]
"""Sets `Stream.task`, which later calls `Streams.resume` or `Streams.fail`."""

_REMEMBERED_STREAMS: Final = 1024
_FORGOTTEN_AT_ONCE: Final = 256


class Streams:
    """Keeps the open streams of a connection by id, and connects them to their sessions."""

    def __init__(self, methods: Methods, counters: TransportCounters, spawn: Spawn) -> None:
        self._methods = methods
        self._counters = counters
        self._spawn = spawn
        self.outbox = Outbox(self._all_sent)
        self.open: dict[int, Stream] = {}
        self.closed: dict[int, bool] = {}  # True if reset by us, which the client may not know
        self.forgotten_id = 0  # streams up to this id may be missing from `closed`
        self.last_id = 0

    def start(self, stream_id: int, head: RequestHead, now: float, *, ends: bool) -> None:
        """Open a stream and its session, or refuse it."""
        stream = Stream(stream_id, STREAM_WINDOW_BYTES, self.outbox.stream_window)
        stream.content_left = head.content_length
        if ends:
            stream.move(RECV_END_STREAM)
        self.open[stream_id] = stream
        self._counters.streams_opened += 1
        method = self._methods.get(head.path)
        if head.refusal is not None:
            self._counters.not_grpc += 1
            stream.refusal = head.refusal
        elif method is None:
            self._counters.unknown_methods += 1
            self.end(stream, CloseCause.ERROR, GrpcStatus.UNIMPLEMENTED, f"no method {head.path[:200]}")
        else:
            stream.holds_drain = method.holds_drain
            if head.timeout_seconds is not None:
                stream.deadline = now + head.timeout_seconds
            try:
                session = stream.session = method.open_session()
                connect = getattr(session, "connect", None)
                if connect is not None:
                    connect(partial(self._interrupt, stream), partial(setattr, stream, "passing"), head.traceparent)
            except Exception as error:
                self._end_with_exception(stream, error)
        if ends and stream.state is not CLOSED:
            self._answer_whole_request(stream)

    def deliver(self, stream: Stream, session: StreamSession, messages: Sequence[bytes]) -> None:
        """Pass messages to a session, and send the replies."""
        for message in messages:
            if stream.session is None:
                return
            self._counters.messages_received += 1
            try:
                replies = session.receive(message)
            except Exception as error:
                self._end_with_exception(stream, error)
                return
            if replies:
                self.outbox.send_messages(stream, replies)
                self._counters.messages_sent += len(replies)
            if session.finished or session.waiting is not None:
                self._end_or_wait(stream, session)

    def resume(self, stream: Stream, result: object) -> None:
        """Resume the session with the result of its `waiting`, and send the replies."""
        self._continue(stream, lambda session: session.resume(result))

    def fail(self, stream: Stream, exception: BaseException) -> None:
        """Resume the session with the exception of its `waiting`, and send the replies."""
        self._continue(stream, lambda session: session.fail(exception))

    def end_request(self, stream: Stream) -> None:
        """Handle END_STREAM; raises `H2StreamError` if the body does not match its content-length."""
        if stream.content_left:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "the body does not have the length of content-length")
        stream.move(RECV_END_STREAM)
        self._answer_whole_request(stream)

    def end(self, stream: Stream, cause: CloseCause, status: int = GrpcStatus.OK, message: str = "") -> None:
        """End the stream with a gRPC status, after its pending replies."""
        self._close_session(stream, cause)
        if self.outbox.finish(stream, OK_TRAILERS if status == GrpcStatus.OK else trailers(status, message[:1000])):
            self._all_sent(stream)

    def end_all(self, message: str, *, endless_only: bool = False) -> None:
        """End all streams with UNAVAILABLE, or only those that do not hold a drain."""
        for stream in list(self.open.values()):
            if stream.response is not COMPLETE and not (endless_only and stream.holds_drain):
                self.end(stream, CloseCause.DRAIN, GrpcStatus.UNAVAILABLE, message)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Send RST_STREAM, even after the stream closed."""
        self.outbox.put(rst_stream(stream_id, code))
        stream = self.open.get(stream_id)
        if stream is None:
            self._remember_closed(stream_id, by_reset=True)
        else:
            self.close(stream, SEND_RST_STREAM, CloseCause.ERROR)

    def close(self, stream: Stream, event: StreamEvent, cause: CloseCause) -> None:
        """Close a stream and its session."""
        if stream.session is not None:
            self._close_session(stream, cause)
        stream.move(event)
        del self.open[stream.id]
        self._counters.streams_closed += 1
        if stream.pending:
            self.outbox.forget(stream)
        self._remember_closed(stream.id, by_reset=event is SEND_RST_STREAM)

    def close_all(self) -> None:
        """Close all streams and their sessions, after the connection has closed."""
        for stream in list(self.open.values()):
            self.close(stream, CONNECTION_CLOSED, CloseCause.DISCONNECT)

    def send_window_update(self, stream: Stream) -> None:
        """Reopen the receive window, unless replies or a decision are outstanding."""
        is_used = stream.receive_window <= STREAM_WINDOW_BYTES >> 1
        if is_used and not stream.pending and stream.task is None and stream.state is OPEN:
            self.outbox.put(window_update(stream.id, STREAM_WINDOW_BYTES - stream.receive_window))
            stream.receive_window = STREAM_WINDOW_BYTES

    def expire(self, now: float) -> None:
        """End streams past their `grpc-timeout`."""
        for stream in list(self.open.values()):
            if stream.deadline is not None and stream.deadline <= now and stream.session is not None:
                self._counters.deadlines_exceeded += 1
                self.end(stream, CloseCause.RESET, GrpcStatus.DEADLINE_EXCEEDED, "the client's deadline has passed")

    def _interrupt(self, stream: Stream, result: object) -> None:
        if stream.session is not None and stream.task is None:
            known: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            known.set_result(result)
            self._spawn(stream, known)

    def _continue(self, stream: Stream, step: Callable[[StreamSession], Sequence[bytes]]) -> None:
        stream.task = None
        session = stream.session
        if session is None:
            return
        try:
            replies = step(session)
        except Exception as error:
            self._end_with_exception(stream, error)
            return
        try:
            if replies:
                self.outbox.send_messages(stream, replies)
                self._counters.messages_sent += len(replies)
            self._end_or_wait(stream, session)
            if stream.state is not CLOSED:
                self.send_window_update(stream)
        except H2StreamError as violation:  # mypyc gives a name one type per function
            violation.count(self._counters)
            self.reset(stream.id, violation.code)

    def _answer_whole_request(self, stream: Stream) -> None:
        if stream.response is COMPLETE:
            return
        if stream.refusal is not None:
            self.outbox.refuse(stream, *stream.refusal)
        elif stream.assembler is not None:
            self.end(stream, CloseCause.ERROR, GrpcStatus.INVALID_ARGUMENT, "the stream ends within a message")
        elif stream.session is not None and stream.session.waiting is None:
            self.end(stream, CloseCause.END)

    def _end_or_wait(self, stream: Stream, session: StreamSession) -> None:
        if session.finished:
            self.end(stream, CloseCause.END)
            return
        waiting = session.waiting
        if waiting is None:
            if stream.state is HALF_CLOSED_REMOTE:
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
            self.end(stream, CloseCause.ERROR, GrpcStatus.INTERNAL, "endpick failed on this stream; its log says why")

    def _close_session(self, stream: Stream, cause: CloseCause) -> None:
        session, stream.session = stream.session, None
        stream.passing = None
        if stream.task is not None:
            stream.task.cancel()
            stream.task = None
        if session is not None:
            try:
                session.close(cause)
            except Exception:
                self._counters.session_faults += 1
                logger.exception("a stream session failed while being closed")

    def _all_sent(self, stream: Stream) -> None:
        if stream.response is not COMPLETE:
            self.send_window_update(stream)
        elif stream.state is OPEN:
            stream.move(SEND_END_STREAM)
            # RFC 9113 section 8.1: the rest of the request is not needed.
            self.outbox.put(rst_stream(stream.id, ErrorCode.NO_ERROR))
            self.close(stream, SEND_RST_STREAM, CloseCause.END)
        else:
            self.close(stream, SEND_END_STREAM, CloseCause.END)

    def _remember_closed(self, stream_id: int, *, by_reset: bool) -> None:
        self.closed[stream_id] = by_reset
        if len(self.closed) > _REMEMBERED_STREAMS:
            for oldest in list(islice(self.closed, _FORGOTTEN_AT_ONCE)):
                del self.closed[oldest]
                self.forgotten_id = max(self.forgotten_id, oldest)
