"""Handles HEADERS, CONTINUATION and DATA."""

from __future__ import annotations

from typing import Final

from endpick.extproc.stream import GrpcStatus
from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.control import LAST_CALL, WAITING_FOR_SETTINGS, ControlFrames, Lifetime
from endpick.transport.h2.frames import (
    CONNECTION_WINDOW_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_STREAM,
    PADDED,
    STREAM_WINDOW_BYTES,
    ErrorCode,
    H2ConnectionError,
    H2StreamError,
)
from endpick.transport.h2.headers import Fields, HeaderBlocks, MalformedError, RequestHead, check_trailers, read_head, unpad
from endpick.transport.h2.stream import (
    CLOSED,
    HALF_CLOSED_REMOTE,
    MAX_PAYLOAD_BYTES,
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    CompressedMessageError,
    MessageAssembler,
    MessageTooLargeError,
    Stream,
)
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits, TransportCounters

_message_head: Final = MESSAGE_HEAD.unpack_from


class RequestFrames:
    """Handles the frames of requests; raises `H2ConnectionError` and `H2StreamError`."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, lifetime: Lifetime, control: ControlFrames) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self._open = streams.open
        self._lifetime = lifetime
        self._control = control
        self._max_message_bytes = limits.max_message_bytes
        self._max_passing_bytes = min(MAX_PAYLOAD_BYTES, limits.max_message_bytes + MESSAGE_HEAD_BYTES)
        self._receive_window = DEFAULT_WINDOW_BYTES
        self._known_fields: Fields = []
        self._known_head = RequestHead()
        self.blocks = HeaderBlocks(limits)

    def receive_data(self, flags: int, stream_id: int, buffer: bytes, start: int, stop: int, now: float) -> None:
        """Handle DATA with the payload `buffer[start:stop]`, and account for both receive windows."""
        length = stop - start
        self._receive_window -= length
        if self._receive_window <= CONNECTION_WINDOW_BYTES >> 1:
            if self._receive_window < 0:
                raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
            self.send_window_update()
        stream = self._open.get(stream_id)
        if stream is None or stream.state is HALF_CLOSED_REMOTE:
            self._refuse_data(stream_id)
            return
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise H2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        passing = stream.passing
        if (
            passing is not None
            and not flags
            and MESSAGE_HEAD_BYTES < length <= self._max_passing_bytes
            and self._outbox.pass_on(stream, passing, buffer, start, stop)
        ):
            self._counters.messages_received += 1
            self._counters.messages_sent += 1
        else:
            if flags & PADDED:
                start, stop = unpad(buffer, start, stop)
            if stream.content_left is not None:
                stream.content_left -= stop - start
            if stop > start:
                self._receive_payload(stream, buffer, start, stop)
            elif not flags & END_STREAM:
                self._control.receive_empty_data(now)
            if flags & END_STREAM and stream.state is not CLOSED:
                self._streams.end_request(stream)
        if stream.receive_window <= STREAM_WINDOW_BYTES >> 1 and stream.state is not CLOSED:
            self._streams.send_window_update(stream)

    def receive_headers(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Handle HEADERS or CONTINUATION; a complete block begins a request or ends it as trailers."""
        blocks = self.blocks
        fields = blocks.add(kind, flags, stream_id, payload, now)
        if fields is None:
            return
        stream = self._open.get(stream_id)
        if stream is not None:
            self._receive_trailers(stream, fields, ends=blocks.ends_stream)
        elif stream_id > self._streams.last_id:
            self._receive_request(stream_id, fields, now, ends=blocks.ends_stream)
        elif stream_id <= self._streams.forgotten_id:
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS on a stream closed long ago")
        elif stream_id not in self._streams.closed:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is opened after a later one")
        elif not self._streams.closed[stream_id]:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        if blocks.depends_on_itself:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def send_window_update(self) -> None:
        """Refill the connection's receive window, unless the client has stopped reading."""
        increment = CONNECTION_WINDOW_BYTES - self._receive_window
        if increment > 0 and self._outbox.writable:
            self._outbox.put(frames.window_update(0, increment))
            self._receive_window += increment

    def _receive_payload(self, stream: Stream, buffer: bytes, start: int, stop: int) -> None:
        session = stream.session
        if session is None:
            return
        size = stop - start - MESSAGE_HEAD_BYTES
        if stream.assembler is None and 0 <= size <= self._max_message_bytes and _message_head(buffer, start) == (0, size):
            # Nearly every payload is one whole message.
            messages: list[bytes] = [buffer[start + MESSAGE_HEAD_BYTES : stop]]
        else:
            messages = self._assembled(stream, buffer, start, stop)
        if messages:
            self._streams.deliver(stream, session, messages)

    def _assembled(self, stream: Stream, buffer: bytes, start: int, stop: int) -> list[bytes]:
        assembler = stream.assembler or MessageAssembler(self._max_message_bytes)
        try:
            messages = assembler.feed(buffer, start, stop)
        except MessageTooLargeError as error:
            self._counters.messages_too_large += 1
            self._streams.end(stream, CloseCause.ERROR, GrpcStatus.RESOURCE_EXHAUSTED, str(error))
            return []
        except CompressedMessageError:
            self._counters.compressed_messages += 1
            self._streams.end(stream, CloseCause.ERROR, GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
            return []
        stream.assembler = None if assembler.is_empty else assembler
        return messages

    def _refuse_data(self, stream_id: int) -> None:
        if stream_id == 0 or self._lifetime.is_idle(stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # a client may send DATA until it has read our RST_STREAM.
        if not self._streams.closed.get(stream_id, False):
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")

    def _receive_request(self, stream_id: int, fields: Fields, now: float, *, ends: bool) -> None:
        if self._lifetime.state <= WAITING_FOR_SETTINGS:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"clients may not open stream {stream_id}")
        if self._lifetime.state >= LAST_CALL:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "draining", "streams_refused")
        self._streams.last_id = stream_id
        if len(self._open) >= self._limits.max_concurrent_streams:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams", "streams_refused")
        if fields is not self._known_fields:  # a repeated block gives the same list
            try:
                self._known_head = read_head(fields)
            except MalformedError as error:
                raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
            self._known_fields = fields
        head = self._known_head
        if ends and head.content_length:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length promises a body that does not come")
        self._streams.start(stream_id, head, now, ends=ends)

    def _receive_trailers(self, stream: Stream, fields: Fields, *, ends: bool) -> None:
        if stream.state is HALF_CLOSED_REMOTE:
            raise H2StreamError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the request")
        if not ends:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the request")
        try:
            check_trailers(fields)
        except MalformedError as error:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        self._streams.end_request(stream)
