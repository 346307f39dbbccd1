"""Requests as they arrive: HEADERS and DATA of one connection, checked and handed to its streams."""

from __future__ import annotations

from endpick.extproc.stream import CloseCause
from endpick.transport.counters import TransportCounters
from endpick.transport.h2 import frames
from endpick.transport.h2.control import ControlFrames
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError, H2StreamError
from endpick.transport.h2.frames import END_STREAM, PADDED
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
from endpick.transport.h2.request import MalformedError, RequestHead, check_trailers, read_head
from endpick.transport.h2.settings import DEFAULT_WINDOW_BYTES
from endpick.transport.h2.stream import Stream
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits

__all__ = ["Intake"]

_message_head = MESSAGE_HEAD.unpack_from


class Intake:
    """Takes every HEADERS, CONTINUATION and DATA frame of one connection.

    Its methods raise `H2ConnectionError` or `H2StreamError` for a client that breaks the rules.
    """

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, control: ControlFrames) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._open = streams.open
        self._control = control
        self._connection_window_floor = limits.connection_window_bytes >> 1
        self._stream_window_floor = limits.stream_window_bytes >> 1
        self._max_message_bytes = limits.max_message_bytes
        self._receive_window = DEFAULT_WINDOW_BYTES
        self._known_fields: Fields = []
        self._known_head = RequestHead()
        self.blocks = HeaderBlocks(limits)

    def data(self, flags: int, stream_id: int, buffer: bytes, start: int, stop: int, now: float) -> None:
        """Take a DATA frame whose payload is `buffer[start:stop]`."""
        length = stop - start
        self._receive_window -= length
        if self._receive_window <= self._connection_window_floor:
            if self._receive_window < 0:
                raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
            self.credit()
        stream = self._open.get(stream_id)
        if stream is None or stream.half_closed:
            self._data_of_no_stream(stream_id)
            return
        stream.touched = now
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise H2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        size = length - MESSAGE_HEAD_BYTES
        session = stream.session
        # Nearly every frame is exactly one message and nothing else; that way costs one copy.
        if (
            not flags
            and session is not None
            and stream.assembler is None
            and stream.content_left is None
            and 0 <= size <= self._max_message_bytes
            and _message_head(buffer, start) == (0, size)
        ):
            self._streams.deliver(stream, session, buffer[start + MESSAGE_HEAD_BYTES : stop])
        else:
            self._any_data(stream, flags, buffer, start, stop, now)
        if stream.receive_window <= self._stream_window_floor and not stream.over:
            self._streams.credit(stream)

    def headers(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Take a HEADERS or CONTINUATION frame."""
        block = self.blocks.add(kind, flags, stream_id, payload, now)
        if block is None:
            return
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._trailers(stream, block.fields, ends=block.ends_stream)
        elif stream_id > self._streams.last_id:
            self._request(stream_id, block.fields, now, ends=block.ends_stream)
        elif stream_id <= self._streams.forgotten_id:
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS on a stream that is long gone")
        elif stream_id not in self._streams.closed:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is opened after a later one")
        elif not self._streams.closed[stream_id]:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        if block.depends_on_itself:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def credit(self) -> None:
        """Let the client send more, unless it takes nothing itself."""
        increment = self._limits.connection_window_bytes - self._receive_window
        if increment > 0 and self._streams.outbox.writable:
            self._streams.outbox.put(frames.window_update(0, increment))
            self._receive_window += increment

    def _any_data(self, stream: Stream, flags: int, buffer: bytes, start: int, stop: int, now: float) -> None:
        """Take a DATA frame of whatever form."""
        if flags & PADDED:
            start, stop = unpad(buffer, start, stop)
        if stream.content_left is not None:
            stream.content_left -= stop - start
        if stop > start:
            self._messages(stream, buffer[start:stop])
        elif not flags & END_STREAM:
            self._control.spend_empty_frame(now)
        if flags & END_STREAM and not stream.over:
            self._half_close(stream)

    def _messages(self, stream: Stream, payload: bytes) -> None:
        """Deliver the gRPC messages that a DATA payload holds or completes."""
        if stream.session is None:
            return
        if stream.assembler is None:
            stream.assembler = MessageAssembler(self._limits.max_message_bytes)
        try:
            messages = stream.assembler.feed(payload)
        except MessageTooLargeError as error:
            self._counters.messages_too_large += 1
            self._streams.end(stream, CloseCause.ERROR, Status.RESOURCE_EXHAUSTED, str(error))
            return
        except CompressedMessageError:
            self._counters.compressed_messages += 1
            self._streams.end(stream, CloseCause.ERROR, Status.UNIMPLEMENTED, "compressed messages are not understood here")
            return
        self._streams.hold(stream, stream.assembler.held_bytes)
        for message in messages:
            if stream.session is None:
                return
            self._streams.deliver(stream, stream.session, message)
        if not stream.assembler.held_bytes:
            stream.assembler = None

    def _data_of_no_stream(self, stream_id: int) -> None:
        # After the last GOAWAY, streams beyond it are refused, and what else comes on them is to be ignored.
        if stream_id == 0 or (stream_id > self._streams.last_id and self._streams.accepting):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # A client that has not yet heard of the end of a stream is in its right.
        if not self._streams.closed.get(stream_id, False):
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")

    def _request(self, stream_id: int, fields: Fields, now: float, *, ends: bool) -> None:
        if not self._control.settled:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"clients may not open stream {stream_id}")
        if not self._streams.accepting:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "draining", "streams_refused")
        self._streams.last_id = stream_id
        if len(self._streams.open) >= self._limits.max_concurrent_streams:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams", "streams_refused")
        try:
            head = self._head_of(fields)
        except MalformedError as error:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if ends and head.content_length:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length promises a body that does not come")
        self._streams.start(stream_id, head, now, half_closed=ends)

    def _head_of(self, fields: Fields) -> RequestHead:
        """As `read_head`, which is asked only once while the same list comes again."""
        if fields is not self._known_fields:
            self._known_head = read_head(fields)
            self._known_fields = fields
        return self._known_head

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
        self._streams.half_close(stream)
