"""One HTTP/2 connection (RFC 9113): sans-IO, and its asyncio protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, cast

from endpick.extproc.stream import StreamSession
from endpick.transport.h2 import frames
from endpick.transport.h2.control import CLOSED, CLOSING, LAST_CALL, WAITING_FOR_PREFACE, WAITING_FOR_SETTINGS, ControlFrames, Lifetime
from endpick.transport.h2.frames import (
    CONTINUATION,
    DATA,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    PREFACE,
    RST_STREAM,
    ErrorCode,
    H2ConnectionError,
    H2StreamError,
    PartialFrame,
    RateBudget,
    announced_settings,
    checked_length,
    read_frame_head,
)
from endpick.transport.h2.receive import RequestFrames
from endpick.transport.h2.stream import Stream
from endpick.transport.h2.streams import Spawn, Streams
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Methods

_HTTP1_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_STREAM_ERROR_BURST: Final = 1000
_STREAM_ERRORS_PER_SECOND: Final = 100


class Connection:
    """The server side of a connection, without I/O.

    After each call the caller writes `outbox`, and closes the socket if `lifetime.closing`. Errors of the client do not raise.
    """

    def __init__(self, methods: Methods, limits: Limits, counters: TransportCounters, spawn: Spawn, now: float) -> None:
        self._counters = counters
        self._start = b""
        self._partial = PartialFrame()
        self.streams = Streams(methods, counters, spawn)
        self.outbox = self.streams.outbox
        self.lifetime = Lifetime(limits, counters, self.streams, now)
        self._control = ControlFrames(counters, self.streams, self.lifetime, now)
        self._requests = RequestFrames(limits, counters, self.streams, self.lifetime, self._control)
        self._stream_errors = RateBudget(_STREAM_ERROR_BURST, _STREAM_ERRORS_PER_SECOND, "stream errors", "stream_error_floods", now)
        counters.connections_opened += 1
        self.outbox.put(frames.settings(announced_settings(limits)))
        self._requests.send_window_update()

    def receive(self, data: bytes, now: float) -> None:
        """Handle bytes of the client, received at `now` in monotonic seconds; replies go to `outbox`."""
        lifetime = self.lifetime
        if lifetime.closing:
            return
        lifetime.received_at = now
        try:
            if lifetime.state is WAITING_FOR_PREFACE:
                data = self._take_preface(data)
            position = 0
            if self._partial:
                frame, position = self._partial.complete(data)
                self._receive_frames(frame, 0, now)
            self._receive_frames(data, position, now)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            if lifetime.state is LAST_CALL:
                lifetime.close_after_last_stream()

    def tick(self, now: float) -> None:
        """Enforce the timeouts of header blocks, streams and the connection; called once a second."""
        lifetime = self.lifetime
        if lifetime.closing:
            return
        try:
            self._requests.blocks.require_end(now)
            self.streams.expire(now)
            lifetime.tick(now)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            lifetime.close_after_last_stream()

    def drain(self, now: float, grace_seconds: float) -> None:
        """Close when all streams have ended, or after `grace_seconds`."""
        if not self.lifetime.closing:
            self.lifetime.drain(now, grace_seconds)
            self.lifetime.close_after_last_stream()

    def end_now(self) -> None:
        """End every stream with UNAVAILABLE and close."""
        if not self.lifetime.closing:
            self.lifetime.end_streams()
            self.lifetime.enter(CLOSING)

    def end_with(self, error: H2ConnectionError) -> None:
        """Send GOAWAY with the code and reason of an error, and close all streams."""
        if not self.lifetime.closing:
            self.lifetime.enter(CLOSING)
            error.count(self._counters)
            self.outbox.put(frames.goaway(self.streams.last_id, error.code, error.reason))
            self.streams.close_all()

    def set_writable(self, writable: bool) -> None:
        """Hold back messages while the socket accepts no writes, and send them once it does."""
        self.outbox.writable = writable
        if writable:
            self.outbox.push_ready()
            self._requests.send_window_update()

    def lost(self) -> None:
        """Close all streams and their sessions, after the socket has closed."""
        self.lifetime.enter(CLOSED)
        self._counters.connections_closed += 1
        self.streams.close_all()

    def _take_preface(self, data: bytes) -> bytes:
        start = self._start = self._start + data
        if start.startswith(PREFACE):
            self._start = b""
            self.lifetime.enter(WAITING_FOR_SETTINGS)
            return start[len(PREFACE) :]
        if any(len(start) < len(known) and known.startswith(start) for known in (PREFACE, *_HTTP1_METHODS, _TLS_HANDSHAKE)):
            return b""
        if start.startswith(_TLS_HANDSHAKE):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "TLS on a plain-text port", "tls_on_plain_text")
        if start.startswith(_HTTP1_METHODS):
            raise H2ConnectionError(ErrorCode.HTTP_1_1_REQUIRED, "HTTP/1 on a gRPC port", "http1_connections")
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 connection preface", "bad_prefaces")

    def _receive_frames(self, buffer: bytes, position: int, now: float) -> None:
        requests = self._requests
        blocks = requests.blocks
        end = len(buffer)
        # typed for mypyc
        length_and_kind: int
        flags: int
        stream_id: int
        while end - position >= FRAME_HEAD_BYTES:
            length_and_kind, flags, stream_id = read_frame_head(buffer, position)
            length = length_and_kind >> 8
            start = position + FRAME_HEAD_BYTES
            stop = start + length
            if length > MAX_FRAME_BYTES:
                checked_length(length)
            if stop > end:
                break
            position = stop
            kind = length_and_kind & 0xFF
            stream_id &= MAX_STREAM_ID
            try:
                if blocks.stream_id and (kind != CONTINUATION or stream_id != blocks.stream_id):
                    raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
                if kind == DATA:
                    requests.receive_data(flags, stream_id, buffer, start, stop, now)
                elif kind in (HEADERS, CONTINUATION):
                    requests.receive_headers(kind, flags, stream_id, buffer[start:stop], now)
                elif kind == RST_STREAM:
                    self._control.receive_reset(stream_id, buffer[start:stop], now)
                else:
                    self._control.receive(kind, flags, stream_id, buffer[start:stop], now)
            except H2StreamError as error:
                error.count(self._counters)
                self.streams.reset(error.stream_id, error.code)
                self._stream_errors.spend(now)
        if position < end:
            self._partial.start(buffer, position)


_WRITE_BUFFER_BYTES: Final = 256 * 1024  # more make replies wait at their streams
_WRITE_STALL_SECONDS: Final = 30.0
_LINGER_SECONDS: Final = 1.0
_now: Final = time.monotonic


class ConnectionOwner(Protocol):
    """The server that owns a connection, and is notified when it opens and closes."""

    methods: Methods
    limits: Limits
    counters: TransportCounters

    def opened(self, connection: SocketConnection) -> None: ...

    def closed(self, connection: SocketConnection) -> None: ...


class SocketConnection:
    """An asyncio protocol without the base class, which slows attributes down in mypyc."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._connection: Connection | None = None
        self._closed = False
        self._flush_scheduled = False
        self._stalled_since: float | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not instances of it
        owner = self._owner
        owner.opened(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._connection = Connection(owner.methods, owner.limits, owner.counters, self._spawn, _now())
        self._flush()

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None and not self._closed:
            connection.receive(data, _now())
            self._flush()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""

    def pause_writing(self) -> None:
        self._stalled_since = _now()
        if self._connection is not None:
            self._connection.set_writable(False)

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._connection is not None:
            self._connection.set_writable(True)
            self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lost()
            self._owner.closed(self)

    def tick(self, now: float) -> None:
        """Abort if the client has stopped reading, else apply `Connection.tick`; called once a second."""
        connection = self._connection
        if connection is None or self._closed:
            return
        if self._stalled_since is not None and now - self._stalled_since > _WRITE_STALL_SECONDS:
            connection.end_with(H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the client reads nothing", "slow_readers"))
            self.abort()
            return
        connection.tick(now)
        self._flush()

    def drain(self, grace_seconds: float) -> None:
        if self._connection is not None and not self._closed:
            self._connection.drain(_now(), grace_seconds)
            self._flush()

    def end_now(self) -> None:
        if self._connection is not None and not self._closed:
            self._connection.end_now()
            self._flush()

    def abort(self) -> None:
        """Close without writing the rest."""
        self._closed = True
        self._transport.abort()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or self._closed:
            return
        connection.outbox.write_to(self._transport)
        if connection.lifetime.closing:
            self._half_close()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _half_close(self) -> None:
        # Half-close: with unread input, the kernel would discard the last GOAWAY.
        self._closed = True
        self._linger = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)
        if self._transport.can_write_eof():
            with suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()

    def _spawn(self, stream: Stream, waiting: Awaitable[object]) -> None:
        stream.task = asyncio.ensure_future(waiting, loop=self._loop)
        assert stream.session is not None
        stream.task.add_done_callback(partial(self._settle, stream, stream.session))

    def _settle(self, stream: Stream, session: StreamSession, task: asyncio.Future[Any]) -> None:
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        connection = self._connection
        if connection is None or stream.task is not task:  # the stream is closed
            if error is None:
                session.resume(task.result())
            return
        if error is None:
            connection.streams.resume(stream, task.result())
        else:
            connection.streams.fail(stream, error)
        self._flush_soon()
