"""The streams of one connection and their sessions: each opened, fed, resumed, and closed exactly once, however it ends."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from itertools import islice
from typing import Final, cast

from endpick.extproc.stream import SESSION_FAILURES, GrpcStatus, LongBodySession, LongMessage, Message, ProtocolError, Reply, StreamSession
from endpick.requests.memory import MemoryBudget
from endpick.requests.model import CloseCause
from endpick.requests.waiting import at_once
from endpick.transport.h2.errors import ErrorCode, H2StreamError
from endpick.transport.h2.frames import rst_stream, window_update
from endpick.transport.h2.grpc import OK_TRAILERS, trailers
from endpick.transport.h2.headers import RequestHead
from endpick.transport.h2.send import Outbox
from endpick.transport.h2.stream import (
    AWAITED,
    CLOSED,
    COMPLETE,
    CONNECTION_CLOSED,
    HALF_CLOSED_REMOTE,
    NEXT_STATE,
    OPEN,
    RECV_END_STREAM,
    SEND_END_STREAM,
    SEND_RST_STREAM,
    Stream,
)
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Methods

logger = logging.getLogger(__name__)

Spawn = Callable[[Stream, Awaitable[object]], None]
"""Starts a task that awaits what the stream waits for and then calls `Streams.resume` or `Streams.fail`; sets `Stream.task`."""

_REMEMBERED_STREAMS: Final = 1024
_FORGOTTEN_AT_ONCE: Final = 256
_STREAM_BYTES: Final = 2048
"""What an open stream takes with its session, before anything has come on it."""
_CLOSED_AT_ONCE: Final = 32
"""Of the streams of a connection that is gone: about a millisecond's work, as each ends the exchange of a request."""


class Deadlines:
    """Deadlines of the streams of one connection, next first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._pruned_length = 32
        self.next: float | None = None
        """The next one; its stream may have ended already."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, stream_id: int, still_open: Container[int]) -> None:
        """Remember a deadline, and now and then forget those of streams that are not in `still_open` any more.

        Streams usually end long before their deadline; without that the heap would hold them until then.
        """
        if len(self._heap) >= 2 * self._pruned_length:
            self._heap = [entry for entry in self._heap if entry[1] in still_open]
            heapq.heapify(self._heap)
            self._pruned_length = max(32, len(self._heap))
        heapq.heappush(self._heap, (when, stream_id))
        self.next = self._heap[0][0]

    def due(self, now: float, most: int) -> list[int]:
        """Remove and return the streams whose deadline has passed, some of them if there are more."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            found.append(heapq.heappop(self._heap)[1])
        self.next = self._heap[0][0] if self._heap else None
        return found


class Streams:
    """The streams of one connection, by id."""

    def __init__(self, methods: Methods, limits: Limits, counters: TransportCounters, memory: MemoryBudget, spawn: Spawn) -> None:
        self._methods = methods
        self._limits = limits
        self._counters = counters
        self._memory = memory
        self.account = memory.account
        """Whether there is memory for more streams."""
        self._spawn = spawn
        self.deadlines = Deadlines()
        """When `expire` has something to do."""
        self.outbox = Outbox(limits.max_stream_output_bytes, memory, self._all_sent)
        self.open: dict[int, Stream] = {}
        self._to_end: deque[Callable[[], None]] = deque()
        """Ends streams that are to end though their client has not asked for it."""
        self.closed: dict[int, bool] = {}
        """The streams that were closed last; True if by a RST_STREAM of ours, of which the client may not know yet."""
        self.forgotten_id = 0
        """No stream up to this one is remembered for certain."""
        self.last_id = 0
        """The highest stream that the client has opened; higher ones are idle."""

    def start(self, stream_id: int, head: RequestHead, now: float, *, ends: bool) -> None:
        """Open a stream and the session that its request asks for, or prepare to refuse it."""
        stream = Stream(stream_id, self._limits.stream_window_bytes, self.outbox.stream_window, now)
        stream.content_left = head.content_length
        if ends:
            stream.state = NEXT_STATE[stream.state, RECV_END_STREAM]
        self.open[stream_id] = stream
        self._counters.streams_opened += 1
        account = self.account
        account.held_bytes += _STREAM_BYTES
        if account.held_bytes > account.alarm_bytes:
            account.reconsider()
        method = self._methods.get(head.path)
        if head.refusal is not None:
            self._counters.not_grpc += 1
            stream.refusal = head.refusal
        elif method is None:
            self._counters.unknown_methods += 1
            self.end(stream, CloseCause.ERROR, GrpcStatus.UNIMPLEMENTED, f"no method {head.path[:200]}")
        else:
            stream.holds_drain = method.holds_drain
            stream.body_fields = method.body_fields
            if head.timeout_seconds is not None:
                self.deadlines.add(now + head.timeout_seconds, stream_id, self.open)
            try:
                session = stream.session = method.open_session()
                connect = getattr(session, "connect", None)
                if connect is not None:
                    connect(partial(self._interrupt, stream), partial(setattr, stream, "passing"))
            except SESSION_FAILURES as error:
                self._end_with_exception(stream, error)
        if ends and stream.state != CLOSED:
            self._answer_whole_request(stream)

    def deliver(self, stream: Stream, session: StreamSession, messages: Sequence[Message]) -> None:
        """Hand messages to the session of their stream, one after another until it has ended, and send the replies."""
        for message in messages:
            if stream.session is None:
                return
            self._counters.messages_received += 1
            try:
                if isinstance(message, LongMessage):
                    of_bodies: LongBodySession = cast("LongBodySession", session)
                    replies = of_bodies.receive_long(message)
                else:
                    replies = session.receive(message)
            except SESSION_FAILURES as error:
                self._end_with_exception(stream, error)
                return
            if replies:
                self.outbox.send_messages(stream, replies)
                self._counters.messages_sent += len(replies)
            if session.finished or session.waiting is not None:
                self._end_or_wait(stream, session)

    def resume(self, stream: Stream, result: object) -> None:
        """What the session waited for has this result."""
        self._settle(stream, lambda session: session.resume(result))

    def fail(self, stream: Stream, exception: BaseException) -> None:
        """What the session waited for raised this."""
        self._settle(stream, lambda session: session.fail(exception))

    def end_request(self, stream: Stream) -> None:
        """Act on END_STREAM.

        Raises:
            H2StreamError: less has come than was promised.
        """
        if stream.content_left:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as content-length says")
        stream.state = NEXT_STATE[stream.state, RECV_END_STREAM]
        self._answer_whole_request(stream)

    def _answer_whole_request(self, stream: Stream) -> None:
        """Complete the response to a request that has ended, unless a decision is still awaited."""
        if stream.response == COMPLETE:
            return
        if stream.refusal is not None:
            self.outbox.refuse(stream, *stream.refusal)
        elif stream.assembler is not None and stream.assembler.held_bytes:
            self.end(stream, CloseCause.ERROR, GrpcStatus.INVALID_ARGUMENT, "the stream ends within a message")
        elif stream.session is not None and stream.session.waiting is None:
            self.end(stream, CloseCause.END)

    def end(self, stream: Stream, cause: CloseCause, status: int = GrpcStatus.OK, message: str = "") -> None:
        """Close the session and give the stream its status, after the replies that still wait for the client."""
        self._close_session(stream, cause)
        if self.outbox.finish(stream, OK_TRAILERS if status == GrpcStatus.OK else trailers(status, message[:1000])):
            self._all_sent(stream)

    def end_all(self, message: str) -> None:
        """End every stream with UNAVAILABLE: some now, the others by `end_some`."""
        if not self._to_end:
            self._to_end.extend([partial(self._end_unavailable, stream, message) for stream in self.open.values()])
            self.end_some()

    def end_endless(self, message: str) -> None:
        """End the streams that never end by themselves with UNAVAILABLE, as `end_all`."""
        self._to_end.extend([partial(self._end_unavailable, stream, message) for stream in self.open.values() if not stream.holds_drain])
        self.end_some()

    @property
    def ending(self) -> bool:
        """Whether `end_some` has something to do."""
        return bool(self._to_end)

    def end_some(self) -> bool:
        """Go on to end streams that are to end; whether there are more of them, to be ended when others have had their turn."""
        for _ in range(min(len(self._to_end), _CLOSED_AT_ONCE)):
            self._to_end.popleft()()
        return bool(self._to_end)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream with RST_STREAM, whether it is open or not: the client broke a rule on it."""
        self.outbox.put(rst_stream(stream_id, code))
        stream = self.open.get(stream_id)
        if stream is None:
            self.closed[stream_id] = True
            if len(self.closed) > _REMEMBERED_STREAMS:
                self._forget_oldest()
        else:
            self.close(stream, SEND_RST_STREAM, CloseCause.ERROR)

    def close(self, stream: Stream, event: int, cause: CloseCause) -> None:
        """Close the session of a stream that this event closes, if it still has one, and forget the stream."""
        if stream.session is not None:
            self._close_session(stream, cause)
        stream.state = NEXT_STATE[stream.state, event]
        del self.open[stream.id]
        self._counters.streams_closed += 1
        self.account.held_bytes -= _STREAM_BYTES
        if stream.pending:
            self.outbox.forget(stream)
        if stream.held_bytes:
            self._memory.hold(-stream.held_bytes)
            stream.held_bytes = 0
        self.closed[stream.id] = event == SEND_RST_STREAM
        if len(self.closed) > _REMEMBERED_STREAMS:
            self._forget_oldest()
        if self.account.held_bytes < self.account.low_bytes:
            self.account.settle()

    def close_some(self) -> bool:
        """The connection is closed, and its streams with it, some at a time: what their requests leave behind is a plugin's work for each.

        Returns:
            Whether there are more of them.
        """
        for stream in list(islice(self.open.values(), _CLOSED_AT_ONCE)):
            self.close(stream, CONNECTION_CLOSED, CloseCause.DISCONNECT)
        return bool(self.open)

    def hold(self, stream: Stream, size: int) -> None:
        """Account for the part of a message that waits for its end.

        Raises:
            H2StreamError: all connections together hold too much.
        """
        growth = size - stream.held_bytes
        stream.held_bytes = size
        if not self._memory.hold(growth):
            raise H2StreamError(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "no memory left for messages", "buffer_exhaustions")

    def send_window_update(self, stream: Stream) -> None:
        """Let the client send more, unless its replies or a decision are still awaited: then its window bounds what it sends."""
        size = self._limits.stream_window_bytes
        if stream.receive_window <= size >> 1 and not stream.pending and stream.task is None and stream.state == OPEN:
            self.outbox.put(window_update(stream.id, size - stream.receive_window))
            stream.receive_window = size

    def all_silent(self, since: float) -> bool:
        """Whether nothing has come on any open stream but its headers, and they before `since`."""
        whole = self._limits.stream_window_bytes
        for stream in self.open.values():
            if stream.touched > since or stream.receive_window != whole or stream.response != AWAITED or stream.assembler is not None:
                return False
        return True

    def expire(self, now: float) -> None:
        """End the streams whose `grpc-timeout` has passed, or some of them: the next deadline is in the past then."""
        for stream_id in self.deadlines.due(now, _CLOSED_AT_ONCE):
            stream = self.open.get(stream_id)
            if stream is not None and stream.session is not None:
                self._counters.deadlines_exceeded += 1
                self.end(stream, CloseCause.RESET, GrpcStatus.DEADLINE_EXCEEDED, "the deadline that the client set has passed")

    def expire_idle(self, now: float) -> None:
        """End the streams on which nothing has arrived for too long, as `end_all`."""
        if not self._to_end:
            oldest = now - self._limits.max_stream_idle_seconds
            idle = [stream for stream in self.open.values() if stream.touched < oldest and stream.holds_drain]
            self._to_end.extend([partial(self._end_idle, stream) for stream in idle])
            self.end_some()

    def _interrupt(self, stream: Stream, result: object) -> None:
        """Resume a session that waits for nothing, in the next turn of the event loop."""
        if stream.session is not None and stream.task is None:
            self._spawn(stream, at_once(result))

    def _settle(self, stream: Stream, step: Callable[[StreamSession], Sequence[Reply]]) -> None:
        """Go on with a session whose wait is over; called outside the reading of frames, so errors of the stream end here."""
        stream.task = None
        session = stream.session
        if session is None:
            return
        try:
            replies = step(session)
        except SESSION_FAILURES as error:
            self._end_with_exception(stream, error)
            return
        try:
            if replies:
                self.outbox.send_messages(stream, replies)
                self._counters.messages_sent += len(replies)
            self._end_or_wait(stream, session)
            if stream.state != CLOSED:
                self.send_window_update(stream)
        except H2StreamError as error:
            error.count(self._counters)
            self.reset(stream.id, error.code)

    def _end_or_wait(self, stream: Stream, session: StreamSession) -> None:
        """End the stream if its session or its client has finished, unless the session waits: then have that awaited."""
        if session.finished:
            self.end(stream, CloseCause.END)
            return
        waiting = session.waiting
        if waiting is None:
            if stream.state == HALF_CLOSED_REMOTE:
                self.end(stream, CloseCause.END)
        elif stream.task is None:
            self._spawn(stream, waiting)

    def _end_with_exception(self, stream: Stream, error: BaseException) -> None:
        if isinstance(error, ProtocolError):
            self._counters.session_refusals += 1
            self.end(stream, CloseCause.ERROR, error.status, error.message)
        else:
            self._counters.session_faults += 1
            logger.error("a stream session failed; the stream ends with INTERNAL", exc_info=error)
            self.end(stream, CloseCause.ERROR, GrpcStatus.INTERNAL, "endpick failed on this stream; its log says why")

    def _end_idle(self, stream: Stream) -> None:
        if stream.state != CLOSED:
            self._counters.idle_streams += 1
            self.reset(stream.id, ErrorCode.CANCEL)

    def _end_unavailable(self, stream: Stream, message: str) -> None:
        if stream.response != COMPLETE and stream.state != CLOSED:
            self.end(stream, CloseCause.DRAIN, GrpcStatus.UNAVAILABLE, message)

    def _close_session(self, stream: Stream, cause: CloseCause) -> None:
        session, stream.session = stream.session, None
        stream.passing = None
        if stream.task is not None:
            stream.task.cancel()
            stream.task = None
        if session is not None:
            try:
                session.close(cause)
            except SESSION_FAILURES:
                self._counters.session_faults += 1
                logger.exception("a stream session failed while being closed")

    def _all_sent(self, stream: Stream) -> None:
        """The outbox has sent everything it had for the stream, END_STREAM included if the response is complete."""
        if stream.response != COMPLETE:
            self.send_window_update(stream)
        elif stream.state == OPEN:
            stream.state = NEXT_STATE[stream.state, SEND_END_STREAM]
            # The rest of the request is of no use any more; RFC 9113 section 8.1 has the server say so.
            self.outbox.put(rst_stream(stream.id, ErrorCode.NO_ERROR))
            self.close(stream, SEND_RST_STREAM, CloseCause.END)
        else:
            self.close(stream, SEND_END_STREAM, CloseCause.END)

    def _forget_oldest(self) -> None:
        """Forget some of the closed streams at once: finding the first entry of a dictionary takes a walk over those deleted before it."""
        for oldest in list(islice(self.closed, _FORGOTTEN_AT_ONCE)):
            del self.closed[oldest]
            self.forgotten_id = max(self.forgotten_id, oldest)
