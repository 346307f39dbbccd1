"""One HTTP/2 connection without its socket: bytes that arrived in, bytes to write out (RFC 9113)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from endpick.requests.memory import MemoryBudget
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, H2StreamError, RateBudget
from endpick.transport.h2.frames import (
    CONTINUATION,
    DATA,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_STREAM_ID,
    PREFACE,
    RST_STREAM,
    FrameBuffer,
    FrameType,
    announced_settings,
    read_frame_head,
)
from endpick.transport.h2.lifetime import CLOSED, CLOSING, LAST_CALL, WAITING_FOR_PREFACE, WAITING_FOR_SETTINGS, Lifetime
from endpick.transport.h2.receive import ControlFrames, FrameHandler
from endpick.transport.h2.streams import Spawn, Streams
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Methods

_SETTINGS: Final = int(FrameType.SETTINGS)
_HTTP1_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")
_NO_LIMIT: Final = sys.maxsize >> 1
"""Still an offset when a position is added."""
_FRAMES_PER_LOOK: Final = 4
"""So many frames are acted on between two looks at the clock: two requests, if they are short."""
_MANY_STREAMS: Final = 256
"""A change of the window visits each stream: where there are more, the clock is looked at after each SETTINGS."""
_SILENT_SECONDS: Final = 5.0
"""A gateway sends a stream's first message right behind its headers."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
_STARTS: Final = (PREFACE, *_HTTP1_METHODS, _TLS_HANDSHAKE)


class PrefaceReader:
    """Takes the preface off what a client sends first, however it is cut."""

    def __init__(self) -> None:
        self._heard = b""

    def take(self, data: bytes) -> bytes | None:
        """What follows the preface; None while it is not whole.

        Raises:
            H2ConnectionError: this is no HTTP/2.
        """
        self._heard += data
        if self._heard.startswith(PREFACE):
            rest, self._heard = self._heard[len(PREFACE) :], b""
            return rest
        if any(len(self._heard) < len(start) and start.startswith(self._heard) for start in _STARTS):
            return None
        raise _not_http2(self._heard)


def _not_http2(start: bytes) -> H2ConnectionError:
    if start.startswith(_TLS_HANDSHAKE):
        return H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "TLS on a plain-text port", "tls_on_plain_text")
    if start.startswith(_HTTP1_METHODS):
        return H2ConnectionError(ErrorCode.HTTP_1_1_REQUIRED, "HTTP/1 on a gRPC port", "http1_connections")
    return H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 connection preface", "bad_prefaces")


class Connection:
    """The server's side of one connection.

    The owner of the socket calls `receive` with what arrives, `tick` about once a second, `lost` at the end, and after each of them writes
    what is in `outbox`; it closes the socket once `lifetime.closing` is true. What a client does never makes a method raise.
    """

    def __init__(
        self, methods: Methods, limits: Limits, counters: TransportCounters, memory: MemoryBudget, spawn: Spawn, now: float
    ) -> None:
        self._counters = counters
        self._preface = PrefaceReader()
        self._arrived = FrameBuffer(limits.max_frame_bytes)
        self._turn_seconds = limits.read_seconds_per_turn
        self.streams = Streams(methods, limits, counters, memory, spawn)
        self.outbox = self.streams.outbox
        self.lifetime = Lifetime(limits, counters, self.streams, now)
        self._control = ControlFrames(limits, counters, self.streams, self.lifetime, now)
        self._handler = FrameHandler(limits, counters, self.streams, self.lifetime, self._control)
        self._stream_errors = RateBudget(limits.stream_errors_burst, limits.stream_errors_per_second, now)
        self._silent_since: float | None = None
        """When all streams were found to have said nothing; None if they were not."""
        self._silent_id = 0
        """The last stream then."""
        self._silent_window = 0
        """What could be received then."""
        counters.connections_opened += 1
        self.outbox.put(frames.settings(announced_settings(limits)))
        self._handler.send_window_update()

    def receive(self, data: bytes, now: float, clock: Callable[[], float] | None = None, most: int = _NO_LIMIT) -> bool:
        """Act on bytes that arrived, and before them on those that an earlier call has left.

        Args:
            data: What the client sent, after what it sent before; nothing, to go on with what was left.
            now: Monotonic seconds.
            clock: Gives them; without it, neither time nor `most` limits how much is acted on.
            most: How many bytes to act on, about.

        Returns:
            Whether something was left: it took too long, or was too much, for others not to have their turn first.
        """
        lifetime = self.lifetime
        if lifetime.closing:
            return False
        lifetime.heard_at = now
        left = False
        try:
            if lifetime.state == WAITING_FOR_PREFACE:
                behind = self._preface.take(data)
                if behind is None:
                    return False
                lifetime.enter(WAITING_FOR_SETTINGS)
                data = behind
            left = self._take_frames(data, now, clock, most)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            if lifetime.state == LAST_CALL:
                lifetime.close_after_last_stream()
        return left

    def _take_frames(self, data: bytes, now: float, clock: Callable[[], float] | None, most: int) -> bool:
        arrived, handler = self._arrived, self._handler
        blocks = handler.blocks
        longest = arrived.max_payload_bytes
        until_look = _FRAMES_PER_LOOK
        # Declared, because mypyc works on numbers whose type it does not know by calls.
        length_and_kind: int
        flags: int
        stream_id: int
        arrived.add(data)
        if handler.undelivered is not None and self._deliver(now, clock):
            return True
        while True:
            buffer, position = arrived.bytes, arrived.position
            end = len(buffer)
            last = position + most
            while end - position >= FRAME_HEAD_BYTES:
                length_and_kind, flags, stream_id = read_frame_head(buffer, position)
                length = length_and_kind >> 8
                start = position + FRAME_HEAD_BYTES
                stop = start + length
                if stop > end or length > longest:
                    break
                position = stop
                kind = length_and_kind & 0xFF
                stream_id &= MAX_STREAM_ID
                try:
                    if blocks.stream_id and (kind != CONTINUATION or stream_id != blocks.stream_id):
                        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
                    if kind == DATA:
                        handler.data(flags, stream_id, buffer, start, stop, now)
                        if handler.undelivered is not None and self._deliver(now, clock):
                            arrived.position = stop
                            return True
                    elif kind in (HEADERS, CONTINUATION):
                        handler.headers(kind, flags, stream_id, buffer[start:stop], now)
                    elif kind == RST_STREAM:
                        self._control.reset(stream_id, buffer[start:stop], now)
                    else:
                        self._control.receive(kind, flags, stream_id, buffer[start:stop], now)
                        if kind == _SETTINGS and len(self.streams.open) > _MANY_STREAMS:
                            until_look = 1
                except H2StreamError as error:
                    self._end_stream(error, now)
                until_look -= 1
                if not until_look or stop > last:
                    until_look = _FRAMES_PER_LOOK
                    if clock is not None and (stop > last or clock() - now > self._turn_seconds):
                        arrived.position = stop
                        return arrived.left()
            if position == end and not arrived.behind:  # nearly always
                arrived.bytes, arrived.position = b"", 0
                return False
            most = last - position
            arrived.position = position
            if not arrived.read_on():
                return False

    def _deliver(self, now: float, clock: Callable[[], float] | None) -> bool:
        """Deliver what is left of a payload of many messages; whether there is still more of it, and others have their turn first."""
        is_more = True
        while is_more:
            try:
                is_more = self._handler.deliver_some()
            except H2StreamError as error:
                is_more = False
                self._end_stream(error, now)
            if is_more and clock is not None and clock() - now > self._turn_seconds:
                return True
        return False

    def _end_stream(self, error: H2StreamError, now: float) -> None:
        """End a stream on which the client broke a rule."""
        error.count(self._counters)
        self.streams.reset(error.stream_id, error.code)
        self._stream_errors.require(now, "errors of streams", "stream_error_floods")

    def tick(self, now: float) -> None:
        """Time has passed: end what has taken too long."""
        lifetime = self.lifetime
        if lifetime.closing:
            return
        try:
            lifetime.require_settings(now)
            self._handler.blocks.require_end(now)
            self.streams.expire(now)
            self.streams.expire_idle(now)
            lifetime.tick(now)
            self._listen(now)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            lifetime.close_after_last_stream()

    def _listen(self, now: float) -> None:
        """See whether any stream has said anything."""
        if not self.streams.open or not self.streams.all_silent(now - _SILENT_SECONDS):
            self._silent_since = None
        elif not self.is_silent():
            self._silent_since = now
            self._silent_id, self._silent_window = self.streams.last_id, self._handler.receive_window

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to go elsewhere, and close when its streams have ended or `grace_seconds` have passed.

        Streams that never end by themselves are ended at once.
        """
        if not self.lifetime.closing:
            self.lifetime.drain(now, grace_seconds)
            self.lifetime.close_after_last_stream()

    def end_now(self) -> None:
        """End every stream with UNAVAILABLE and close."""
        if not self.lifetime.closing:
            self.lifetime.end_streams()
            while self.streams.end_some():
                pass
            self.lifetime.enter(CLOSING)

    def end_with(self, error: H2ConnectionError) -> None:
        """Close because of what the client did, here or at the socket; the owner ends the streams by `end_some`."""
        if not self.lifetime.closing:
            self.lifetime.enter(CLOSING)
            error.count(self._counters)
            self.outbox.put(frames.goaway(self.streams.last_id, error.code, error.reason))
            self.streams.close_some()

    @property
    def cut_bytes(self) -> int:
        """What has arrived of a frame whose end has not."""
        return self._arrived.cut_bytes

    def idle_since(self) -> float | None:
        """Since when there has been no stream, or none that has said anything, within the second between two ticks; None otherwise."""
        if not self.streams.open:
            return self.lifetime.idle_since()
        return self._silent_since if self.is_silent() else None

    def is_silent(self) -> bool:
        """Whether there are streams, and nothing but their headers has come on any of them for seconds: they are in the way of others."""
        is_new = self.streams.last_id != self._silent_id or self._handler.receive_window != self._silent_window
        return self._silent_since is not None and not is_new and len(self.streams.open) > 0

    def set_writable(self, writable: bool) -> None:
        """The socket takes bytes again, or no more for now."""
        self.outbox.writable = writable
        if writable:
            self.outbox.push_ready()
            self._handler.send_window_update()

    def end_some(self) -> bool:
        """The socket is gone, or nothing more is read of it: end some streams; whether there are more of them."""
        return self.streams.close_some()

    def lost(self) -> None:
        """The socket is gone; all streams that are left end."""
        self.lifetime.enter(CLOSED)
        self._counters.connections_closed += 1
        while self.streams.close_some() or self.streams.end_some():
            pass
        self.outbox.close()
