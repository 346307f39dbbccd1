"""One HTTP/2 connection without its socket: bytes that arrived in, bytes to write out (RFC 9113)."""

from __future__ import annotations

import random

from endpick.extproc.stream import CloseCause
from endpick.transport.counters import TransportCounters
from endpick.transport.h2 import frames
from endpick.transport.h2.budget import MemoryBudget
from endpick.transport.h2.control import ControlFrames
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError, H2StreamError
from endpick.transport.h2.frames import CONTINUATION, DATA, END_STREAM, HEADERS, PADDED, PREFACE, FrameParser
from endpick.transport.h2.grpc import (
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    CompressedMessageError,
    MessageAssembler,
    MessageTooLargeError,
    Status,
)
from endpick.transport.h2.hpack import Fields
from endpick.transport.h2.inbound import HeaderBlocks, unpad
from endpick.transport.h2.preface import check_preface
from endpick.transport.h2.request import MalformedError, check_trailers, read_head
from endpick.transport.h2.settings import DEFAULT_WINDOW_BYTES, announced
from endpick.transport.h2.stream import Stream
from endpick.transport.h2.streams import Spawn, Streams
from endpick.transport.limits import Limits
from endpick.transport.server import Methods

__all__ = ["Connection"]

_PROBE_SECONDS = 1.0
_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"is there"


class Connection:
    """The server's side of one connection.

    Whoever owns the socket calls `receive` with what arrives, `tick` about once a second, `lost` at the end, and after each of them writes
    what `take_output` gives; it closes the socket once `closing` is set. Nothing here raises.
    """

    def __init__(
        self, methods: Methods, limits: Limits, counters: TransportCounters, memory: MemoryBudget, spawn: Spawn, now: float
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._parser = FrameParser(limits.max_frame_bytes)
        self._blocks = HeaderBlocks(limits)
        self._connection_window_floor = limits.connection_window_bytes >> 1
        self._stream_window_floor = limits.stream_window_bytes >> 1
        self._max_message_bytes = limits.max_message_bytes
        self._receive_window = DEFAULT_WINDOW_BYTES
        self._preface = bytearray()
        self._greeted = False
        self.streams = Streams(methods, limits, counters, memory, spawn)
        self.outbox = self.streams.outbox
        self._control = ControlFrames(limits, self.streams, now)
        self._control.on_pong = self._on_pong
        self.closing = False
        """Write what is left and close."""
        self._opened_at = self._heard_at = self._busy_at = now
        self._pinged_at: float | None = None
        self._max_age = limits.max_connection_age_seconds
        if self._max_age is not None:
            # Spread, so that connections opened together do not end together.
            self._max_age *= random.uniform(0.95, 1.05)  # noqa: S311
        self._drain_started_at: float | None = None
        self._drain_ends_at = 0.0
        self._last_call_made = False
        counters.connections_opened += 1
        self.outbox.put(frames.settings(announced(limits)))
        self._credit_connection()

    def take_output(self) -> bytes:
        """What is to be written now."""
        return self.outbox.take()

    def receive(self, data: bytes, now: float) -> None:
        """Bytes arrived; `now` is monotonic seconds."""
        if self.closing:
            return
        self._heard_at = now
        self._pinged_at = None
        try:
            if not self._greeted:
                data = self._greet(data)
            for kind, flags, stream_id, start, stop in self._parser.feed(data):
                try:
                    if self._blocks.stream_id and (kind != CONTINUATION or stream_id != self._blocks.stream_id):
                        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
                    if kind == DATA:
                        self._data(flags, stream_id, start, stop, now)
                    elif kind in (HEADERS, CONTINUATION):
                        self._headers(kind, flags, stream_id, self._parser.buffer[start:stop], now)
                    else:
                        self._control.receive(kind, flags, stream_id, self._parser.buffer[start:stop], now)
                except H2StreamError as fault:
                    fault.count(self._counters)
                    self.streams.reset(fault.stream_id, fault.code)
        except H2ConnectionError as fault:
            self._end(fault)
        else:
            self._close_if_done()

    def tick(self, now: float) -> None:
        """Time passed: act on whatever has been waited for too long."""
        if self.closing:
            return
        try:
            self._expect_progress(now)
            self._keep_alive(now)
            self.streams.expire(now)
            self.streams.expire_idle(now)
        except H2ConnectionError as fault:
            self._end(fault)
        else:
            self._grow_old(now)
            self._close_if_done()

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to go elsewhere, and close when its streams have ended or `grace_seconds` passed.

        Streams that never end by themselves are ended at once.
        """
        if self._drain_started_at is None and not self.closing:
            self._drain_started_at = now
            self._drain_ends_at = now + grace_seconds
            # Two GOAWAYs, as RFC 9113 §6.8 has it: requests that are under way to us while the first travels are still served.
            self.outbox.put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
            self.outbox.put(frames.ping(_DRAIN_PING, ack=False))
            self.streams.end_all(CloseCause.DRAIN, Status.UNAVAILABLE, "the server is draining", endless_only=True)
            self._close_if_done()

    def end_now(self) -> None:
        """End every stream with UNAVAILABLE and close."""
        self.streams.end_all(CloseCause.DRAIN, Status.UNAVAILABLE, "the server is stopping")
        self._call_last()
        self.closing = True

    def end_with(self, fault: H2ConnectionError) -> None:
        """Close because of something seen outside the protocol, at the socket."""
        if not self.closing:
            self._end(fault)

    def set_writable(self, writable: bool) -> None:
        """The socket takes bytes again, or no more for now."""
        self.outbox.writable = writable
        if writable:
            self.outbox.push_ready()
            self._credit_connection()

    def lost(self) -> None:
        """The socket is gone."""
        self.closing = True
        self._counters.connections_closed += 1
        self.streams.lose()
        self.outbox.take()

    def _greet(self, data: bytes) -> bytes:
        """Take the client's preface off what arrived."""
        self._preface += data
        check_preface(bytes(self._preface[: len(PREFACE)]))
        if len(self._preface) < len(PREFACE):
            return b""
        self._greeted = True
        rest = bytes(self._preface[len(PREFACE) :])
        self._preface.clear()
        return rest

    def _data(self, flags: int, stream_id: int, start: int, stop: int, now: float) -> None:
        length = stop - start
        self._receive_window -= length
        if self._receive_window <= self._connection_window_floor:
            if self._receive_window < 0:
                raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
            self._credit_connection()
        stream = self.streams.open.get(stream_id)
        if stream is None or stream.half_closed:
            self._data_of_no_stream(stream_id)
            return
        stream.touched = now
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise H2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if flags & PADDED:
            start, stop = unpad(self._parser.buffer, start, stop)
        if stream.content_left is not None:
            stream.content_left -= stop - start
        ends = flags & END_STREAM
        if stop > start:
            self._messages(stream, start, stop)
        elif not ends:
            self._control.spend_empty_frame(now)
        if stream.over:
            return
        if ends:
            self._half_close(stream)
        elif stream.receive_window <= self._stream_window_floor:
            self.streams.credit(stream)

    def _messages(self, stream: Stream, start: int, stop: int) -> None:
        """Deliver the gRPC messages that a DATA payload holds or completes."""
        session = stream.session
        if session is None:
            return
        buffer = self._parser.buffer
        size = stop - start - MESSAGE_HEAD_BYTES
        # Nearly every frame is exactly one message; that way costs one copy.
        if stream.assembler is None and 0 <= size <= self._max_message_bytes and MESSAGE_HEAD.unpack_from(buffer, start) == (0, size):
            self.streams.deliver(stream, session, buffer[start + MESSAGE_HEAD_BYTES : stop])
            return
        if stream.assembler is None:
            stream.assembler = MessageAssembler(self._limits.max_message_bytes)
        try:
            messages = stream.assembler.feed(buffer[start:stop])
        except MessageTooLargeError as error:
            self._counters.messages_too_large += 1
            self.streams.end(stream, CloseCause.ERROR, Status.RESOURCE_EXHAUSTED, str(error))
            return
        except CompressedMessageError:
            self._counters.compressed_messages += 1
            self.streams.end(stream, CloseCause.ERROR, Status.UNIMPLEMENTED, "compressed messages are not understood here")
            return
        self.streams.hold(stream, stream.assembler.held_bytes)
        for message in messages:
            if stream.session is None:
                return
            self.streams.deliver(stream, session, message)
        if not stream.assembler.held_bytes:
            stream.assembler = None

    def _data_of_no_stream(self, stream_id: int) -> None:
        if stream_id == 0 or stream_id > self._control.last_stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # A client that has not yet heard of the end of a stream is in its right.
        if not self.streams.closed.get(stream_id, False):
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")

    def _headers(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        block = self._blocks.add(kind, flags, stream_id, payload, now)
        if block is None:
            return
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self._trailers(stream, block.fields, ends=block.ends_stream)
        elif stream_id > self._control.last_stream_id:
            self._request(stream_id, block.fields, now, ends=block.ends_stream)
        elif stream_id not in self.streams.closed:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is opened after a later one")
        elif not self.streams.closed[stream_id]:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        if block.depends_on_itself:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _request(self, stream_id: int, fields: Fields, now: float, *, ends: bool) -> None:
        if not self._control.settled:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"clients may not open stream {stream_id}")
        if self._last_call_made:
            self._counters.streams_refused += 1
            self.streams.reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        self._control.last_stream_id = stream_id
        if len(self.streams.open) >= self._limits.max_concurrent_streams:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams", "streams_refused")
        self._busy_at = now
        try:
            head = read_head(fields)
        except MalformedError as error:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if ends and head.content_length:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length promises a body that does not come")
        self.streams.start(stream_id, head, now, half_closed=ends)

    def _trailers(self, stream: Stream, fields: Fields, *, ends: bool) -> None:
        if stream.half_closed:
            raise H2StreamError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the request")
        if not ends:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the request")
        try:
            check_trailers(fields)
        except MalformedError as error:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        self._half_close(stream)

    def _half_close(self, stream: Stream) -> None:
        if stream.content_left:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as content-length says")
        self.streams.half_close(stream)

    def _credit_connection(self) -> None:
        """Let the client send more, unless it takes nothing itself."""
        increment = self._limits.connection_window_bytes - self._receive_window
        if increment > 0 and self.outbox.writable:
            self.outbox.put(frames.window_update(0, increment))
            self._receive_window += increment

    def _expect_progress(self, now: float) -> None:
        if not self._control.settled and now - self._opened_at > self._limits.handshake_seconds:
            raise H2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came", "handshake_timeouts")
        if self._blocks.stream_id and now - self._blocks.started_at > self._limits.header_block_seconds:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block does not end", "header_timeouts")

    def _keep_alive(self, now: float) -> None:
        if self._pinged_at is None:
            if now - self._heard_at > self._limits.keepalive_idle_seconds:
                self._pinged_at = now
                self.outbox.put(frames.ping(_KEEPALIVE_PING, ack=False))
        elif now - self._pinged_at > self._limits.keepalive_timeout_seconds:
            raise H2ConnectionError(ErrorCode.NO_ERROR, "no answer to PING", "keepalive_timeouts")

    def _grow_old(self, now: float) -> None:
        limits = self._limits
        if self._drain_started_at is not None:
            if now - self._drain_started_at > _PROBE_SECONDS:
                self._call_last()
            if now >= self._drain_ends_at:
                self.end_now()
        elif self._max_age is not None and now - self._opened_at > self._max_age:
            self._counters.aged_connections += 1
            self.drain(now, limits.max_connection_age_grace_seconds)
        elif self.streams.open:
            self._busy_at = now
        elif now - self._busy_at > limits.max_connection_idle_seconds:
            self._counters.idle_connections += 1
            self.drain(now, 0.0)

    def _on_pong(self, data: bytes) -> None:
        if data == _DRAIN_PING and self._drain_started_at is not None:
            self._call_last()

    def _call_last(self) -> None:
        """Say which stream is the last that will be served."""
        if not self._last_call_made:
            self._last_call_made = True
            self.outbox.put(frames.goaway(self._control.last_stream_id, ErrorCode.NO_ERROR))

    def _close_if_done(self) -> None:
        if self._last_call_made and not self.streams.open:
            self.closing = True

    def _end(self, fault: H2ConnectionError) -> None:
        fault.count(self._counters)
        self.outbox.put(frames.goaway(self._control.last_stream_id, fault.code, fault.reason))
        self.streams.lose()
        self.closing = True
