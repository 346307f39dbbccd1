"""What the client sends on one connection: every frame is checked and then handed to its stream, or to the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from endpick.extproc.stream import GrpcStatus, Message, StreamSession
from endpick.requests.memory import OverloadStage
from endpick.requests.model import CloseCause
from endpick.transport.envelope import EnvelopeError
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, H2StreamError, RateBudget
from endpick.transport.h2.frames import ACK, DEFAULT_WINDOW_BYTES, END_STREAM, MAX_STREAM_ID, PADDED, FrameType, parse_settings
from endpick.transport.h2.grpc import (
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    CompressedMessageError,
    MessageAssembler,
    MessageTooLargeError,
)
from endpick.transport.h2.headers import HeaderBlocks, MalformedError, RequestHead, check_trailers, read_head, unpad
from endpick.transport.h2.hpack import Fields
from endpick.transport.h2.lifetime import LAST_CALL, WAITING_FOR_SETTINGS, Lifetime
from endpick.transport.h2.short_way import LONGEST_PAYLOAD_BYTES
from endpick.transport.h2.stream import AWAITED, CLOSED, HALF_CLOSED_REMOTE, RECV_RST_STREAM, Stream
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits, TransportCounters

_NO_MEMORY: Final = OverloadStage.CLOSING


class ControlFrames:
    """Acts on every frame of one connection but DATA, HEADERS and CONTINUATION."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, lifetime: Lifetime, now: float) -> None:
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self._lifetime = lifetime
        self._pings = RateBudget(limits.pings_burst, limits.pings_per_second, now)
        self._settings = RateBudget(limits.settings_burst, limits.settings_per_second, now)
        self._empty_frames = RateBudget(limits.empty_frames_burst, limits.empty_frames_per_second, now)
        self._others = RateBudget(limits.control_frames_burst, limits.control_frames_per_second, now)
        self._unanswered_resets = RateBudget(limits.unanswered_resets_burst, limits.unanswered_resets_per_second, now)

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Act on one frame other than RST_STREAM.

        Raises:
            H2ConnectionError, H2StreamError: the frame is malformed, out of place, or one too many.
        """
        if self._lifetime.state <= WAITING_FOR_SETTINGS and kind != FrameType.SETTINGS:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, flags, stream_id, payload, now)
        else:
            # RFC 9113 section 4.1: frames of an unknown type are ignored.
            self._spend_other(now)

    def reset(self, stream_id: int, payload: bytes, now: float) -> None:
        """Act on RST_STREAM, with which gateways end nearly every stream.

        Raises:
            H2ConnectionError: the frame is malformed, out of place, or one too many.
        """
        if not stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
        if len(payload) != 4:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            self._require_not_idle(stream_id, "RST_STREAM")
            self._spend_other(now)
            return
        # Envoy resets nearly every stream once it has its answer; only those reset before any answer can be abuse.
        self._counters.streams_reset_by_peer += 1
        self._streams.close(stream, RECV_RST_STREAM, CloseCause.RESET)
        if stream.response == AWAITED:
            self._unanswered_resets.require(now, "resets of streams before their answer", "reset_floods")

    def spend_empty_frame(self, now: float) -> None:
        """Account for an empty DATA frame.

        Raises:
            H2ConnectionError: one too many.
        """
        self._empty_frames.require(now, "empty frames", "empty_frame_floods")

    def _spend_other(self, now: float) -> None:
        self._others.require(now, "control frames", "control_frame_floods")

    def _priority(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._spend_other(now)
        if not stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise H2StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
        if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            _require_length(payload, 0, "SETTINGS acknowledgement")
            self._spend_other(now)
            return
        self._settings.require(now, "SETTINGS", "settings_floods")
        values = parse_settings(payload)
        # Acknowledged before any DATA that the change lets go, so that the client knows which windows that DATA was sent under.
        self._outbox.put(frames.SETTINGS_ACK)
        self._outbox.apply_settings(values, list(self._streams.open.values()))
        self._lifetime.settings_received()

    def _push_promise(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "clients may not push")

    def _ping(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        _require_length(payload, 8, "PING")
        self._pings.require(now, "PINGs", "ping_floods")
        if flags & ACK:
            self._lifetime.ping_answered(payload)
        else:
            self._outbox.put(frames.ping(payload, ack=True))

    def _goaway(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._spend_other(now)
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")

    def _window_update(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._spend_other(now)
        _require_length(payload, 4, "WINDOW_UPDATE")
        increment = int.from_bytes(payload, "big") & MAX_STREAM_ID
        if stream_id == 0:
            if not increment:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self._outbox.grow_window(increment)
            return
        self._require_not_idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._outbox.grow_stream_window(stream, increment)

    def _require_not_idle(self, stream_id: int, frame: str) -> None:
        if self._lifetime.is_idle(stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame} on stream {stream_id}, which was never opened")


_HANDLERS: dict[int, Callable[[ControlFrames, int, int, bytes, float], None]] = {
    FrameType.PRIORITY: ControlFrames._priority,
    FrameType.SETTINGS: ControlFrames._on_settings,
    FrameType.PUSH_PROMISE: ControlFrames._push_promise,
    FrameType.PING: ControlFrames._ping,
    FrameType.GOAWAY: ControlFrames._goaway,
    FrameType.WINDOW_UPDATE: ControlFrames._window_update,
}


def _require_length(payload: bytes, length: int, frame: str) -> None:
    if len(payload) != length:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"{frame} of {len(payload)} bytes")


_message_head: Final = MESSAGE_HEAD.unpack_from

_DELIVERED_AT_ONCE: Final = 32
"""Messages of one payload, between two looks at the clock: one of 64 KiB has room for nine thousand."""


class Undelivered:
    """What is left of a payload of many messages."""

    __slots__ = ("ends", "messages", "position", "session", "stream")

    def __init__(self, stream: Stream, session: StreamSession, messages: list[Message], *, ends: bool) -> None:
        self.stream = stream
        self.session = session
        self.messages = messages
        self.position = 0
        """Of the next one to deliver."""
        self.ends = ends
        """Whether the request ends behind them."""


class FrameHandler:
    """Takes every HEADERS, CONTINUATION and DATA frame of one connection.

    Its methods raise `H2ConnectionError` or `H2StreamError` where the client breaks a rule.
    """

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, lifetime: Lifetime, control: ControlFrames) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self._open = streams.open
        self._lifetime = lifetime
        self._control = control
        self._connection_window_floor = limits.connection_window_bytes >> 1
        self._stream_window_floor = limits.stream_window_bytes >> 1
        self._max_short_bytes = min(limits.max_message_bytes, limits.max_envelope_bytes)
        self._longest_passing = min(LONGEST_PAYLOAD_BYTES, limits.max_message_bytes + MESSAGE_HEAD_BYTES)
        self.receive_window = DEFAULT_WINDOW_BYTES
        """Of the connection; it changes with each DATA frame."""
        self._known_fields: Fields = []
        self._known_head = RequestHead()
        self.blocks = HeaderBlocks(limits)
        self.undelivered: Undelivered | None = None
        """To be delivered by `deliver_some` before any other frame is taken."""

    def data(self, flags: int, stream_id: int, buffer: bytes, start: int, stop: int, now: float) -> None:
        """Take a DATA frame whose payload is `buffer[start:stop]`."""
        length = stop - start
        self.receive_window -= length
        if self.receive_window <= self._connection_window_floor:
            if self.receive_window < 0:
                raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
            self.send_window_update()
        stream = self._open.get(stream_id)
        if stream is None or stream.state == HALF_CLOSED_REMOTE:
            self._refuse_data(stream_id)
            return
        stream.touched = now
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise H2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        passing = stream.passing
        if (
            passing is not None
            and not flags
            and MESSAGE_HEAD_BYTES < length <= self._longest_passing
            and self._outbox.pass_on(stream, passing, buffer, start, stop)
        ):
            self._counters.messages_received += 1
            self._counters.messages_sent += 1
        else:
            if flags & PADDED:
                start, stop = unpad(buffer, start, stop)
            if stream.content_left is not None:
                stream.content_left -= stop - start
            session = stream.session
            if stop <= start:
                if not flags & END_STREAM:
                    self._control.spend_empty_frame(now)
            elif session is not None:
                size = stop - start - MESSAGE_HEAD_BYTES
                if stream.held_bytes:
                    messages = self._assembled(stream, buffer, start, stop)
                elif 0 <= size <= self._max_short_bytes and _message_head(buffer, start) == (0, size):
                    # Nearly every payload is exactly one message and nothing else; that way costs one copy.
                    messages = [buffer[start + MESSAGE_HEAD_BYTES : stop]]
                else:
                    messages = self._messages(stream, buffer, start, stop)
                if len(messages) > _DELIVERED_AT_ONCE:
                    self.undelivered = Undelivered(stream, session, messages, ends=flags & END_STREAM != 0)
                    return
                if messages:
                    self._streams.deliver(stream, session, messages)
            if flags & END_STREAM and stream.state != CLOSED:
                self._streams.end_request(stream)
        if stream.receive_window <= self._stream_window_floor and stream.state != CLOSED:
            self._streams.send_window_update(stream)

    def deliver_some(self) -> bool:
        """Deliver some of the messages that are left of a payload; whether any are left."""
        rest = self.undelivered
        if rest is None:
            return False
        self.undelivered = None  # also where the stream breaks a rule
        stream, start = rest.stream, rest.position
        rest.position = end = min(start + _DELIVERED_AT_ONCE, len(rest.messages))
        self._streams.deliver(stream, rest.session, rest.messages[start:end])
        if end < len(rest.messages) and stream.session is not None:
            self.undelivered = rest
            return True
        if rest.ends and stream.state != CLOSED:
            self._streams.end_request(stream)
        if stream.receive_window <= self._stream_window_floor and stream.state != CLOSED:
            self._streams.send_window_update(stream)
        return False

    def headers(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Take a HEADERS or CONTINUATION frame."""
        blocks = self.blocks
        fields = blocks.add(kind, flags, stream_id, payload, now)
        if fields is None:
            return
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._trailers(stream, fields, ends=blocks.ends_stream)
        elif stream_id > self._streams.last_id:
            self._request(stream_id, fields, now, ends=blocks.ends_stream)
        elif stream_id <= self._streams.forgotten_id:
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS on a stream that is long gone")
        elif stream_id not in self._streams.closed:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is opened after a later one")
        elif not self._streams.closed[stream_id]:
            raise H2ConnectionError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        if blocks.depends_on_itself:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def send_window_update(self) -> None:
        """Let the client send more on this connection, unless it does not read what the server sends."""
        increment = self._limits.connection_window_bytes - self.receive_window
        if increment > 0 and self._outbox.writable:
            self._outbox.put(frames.window_update(0, increment))
            self.receive_window += increment

    def _messages(self, stream: Stream, buffer: bytes, start: int, stop: int) -> list[Message]:
        """The gRPC messages in a DATA payload, `buffer[start:stop]`, which begins with one."""
        messages: list[Message] = []
        # Only a message that is cut, long or not acceptable needs an assembler.
        while stop - start >= MESSAGE_HEAD_BYTES:
            compressed, length = _message_head(buffer, start)
            end = start + MESSAGE_HEAD_BYTES + length
            if compressed or length > self._max_short_bytes or end > stop:
                break
            messages.append(buffer[start + MESSAGE_HEAD_BYTES : end])
            start = end
        if start < stop:
            messages += self._assembled(stream, buffer, start, stop)
        return messages

    def _assembled(self, stream: Stream, buffer: bytes, start: int, stop: int) -> list[Message]:
        """The messages that the payload, or the rest of one, completes or holds; a stream is ended by one that is not acceptable."""
        assembler = stream.assembler
        if assembler is None:
            limits = self._limits
            assembler = stream.assembler = MessageAssembler(limits.max_message_bytes, limits.max_envelope_bytes, stream.body_fields)
        try:
            messages = assembler.feed(buffer, start, stop)
        except MessageTooLargeError as error:
            self._counters.messages_too_large += 1
            self._streams.end(stream, CloseCause.ERROR, GrpcStatus.RESOURCE_EXHAUSTED, str(error))
            return []
        except EnvelopeError as refusal:  # a name of its own: mypyc gives each one type
            self._counters.envelopes_too_large += 1
            self._streams.end(stream, CloseCause.ERROR, GrpcStatus.INVALID_ARGUMENT, str(refusal))
            return []
        except CompressedMessageError:
            self._counters.compressed_messages += 1
            self._streams.end(stream, CloseCause.ERROR, GrpcStatus.UNIMPLEMENTED, "compressed messages are not understood here")
            return []
        if assembler.held_bytes != stream.held_bytes:
            self._streams.hold(stream, assembler.held_bytes)
        return messages

    def _refuse_data(self, stream_id: int) -> None:
        """Account for DATA on a stream that is idle, half-closed (remote) or closed."""
        if stream_id == 0 or self._lifetime.is_idle(stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        # A client may send on a stream until it has read our RST_STREAM.
        if not self._streams.closed.get(stream_id, False):
            raise H2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a closed stream")

    def _request(self, stream_id: int, fields: Fields, now: float, *, ends: bool) -> None:
        if self._lifetime.state <= WAITING_FOR_SETTINGS:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if not stream_id & 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"clients may not open stream {stream_id}")
        if self._lifetime.state >= LAST_CALL:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "draining", "streams_refused")
        self._streams.last_id = stream_id
        account = self._streams.account
        if account.stage >= _NO_MEMORY:
            account.streams_refused += 1
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "short of memory", "streams_refused")
        if len(self._streams.open) >= self._limits.max_concurrent_streams:
            raise H2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams", "streams_refused")
        # Gateways repeat one header block, and the decoder then gives the same list again.
        if fields is not self._known_fields:
            try:
                self._known_head = read_head(fields)
            except MalformedError as error:
                raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
            self._known_fields = fields
        head = self._known_head
        if ends and head.content_length:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length promises a body that does not come")
        self._streams.start(stream_id, head, now, ends=ends)

    def _trailers(self, stream: Stream, fields: Fields, *, ends: bool) -> None:
        if stream.state == HALF_CLOSED_REMOTE:
            raise H2StreamError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the request")
        if not ends:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the request")
        try:
            check_trailers(fields)
        except MalformedError as error:
            raise H2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        self._streams.end_request(stream)
