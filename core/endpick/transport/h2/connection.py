"""One HTTP/2 connection without its socket: bytes that arrived in, bytes to write out (RFC 9113)."""

from __future__ import annotations

from endpick.transport.counters import TransportCounters
from endpick.transport.h2 import frames
from endpick.transport.h2.budget import MemoryBudget, RateBudget
from endpick.transport.h2.control import ControlFrames
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError, H2StreamError
from endpick.transport.h2.frames import CONTINUATION, DATA, HEADERS, FrameParser
from endpick.transport.h2.intake import Intake
from endpick.transport.h2.lifetime import Lifetime
from endpick.transport.h2.preface import Greeting
from endpick.transport.h2.settings import announced
from endpick.transport.h2.streams import Spawn, Streams
from endpick.transport.limits import Limits
from endpick.transport.server import Methods

__all__ = ["Connection"]


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
        self._greeting = Greeting()
        self._parser = FrameParser(limits.max_frame_bytes)
        self.streams = Streams(methods, limits, counters, memory, spawn)
        self.outbox = self.streams.outbox
        self._lifetime = Lifetime(limits, counters, self.streams, now)
        self._control = ControlFrames(limits, self.streams, self._lifetime.answered, now)
        self._intake = Intake(limits, counters, self.streams, self._control)
        self._stream_errors = RateBudget(limits.stream_errors_burst, limits.stream_errors_per_second, now)
        self.closing = False
        """Write what is left and close."""
        counters.connections_opened += 1
        self.outbox.put(frames.settings(announced(limits)))
        self._intake.credit()

    def take_output(self) -> bytes:
        """What is to be written now."""
        return self.outbox.take()

    def receive(self, data: bytes, now: float) -> None:
        """Bytes arrived; `now` is monotonic seconds."""
        if self.closing:
            return
        self._lifetime.heard(now)
        try:
            if not self._greeting.done:
                data = self._greeting.take(data)
            self._take_frames(data, now)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            self.closing = self._lifetime.over

    def _take_frames(self, data: bytes, now: float) -> None:
        parser, intake = self._parser, self._intake
        blocks = intake.blocks
        for kind, flags, stream_id, start, stop in parser.feed(data):
            try:
                if blocks.stream_id and (kind != CONTINUATION or stream_id != blocks.stream_id):
                    raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
                if kind == DATA:
                    intake.data(flags, stream_id, parser.buffer, start, stop, now)
                elif kind in (HEADERS, CONTINUATION):
                    intake.headers(kind, flags, stream_id, parser.buffer[start:stop], now)
                else:
                    self._control.receive(kind, flags, stream_id, parser.buffer[start:stop], now)
            except H2StreamError as error:
                error.count(self._counters)
                self.streams.reset(error.stream_id, error.code)
                self._stream_errors.require(now, "errors of streams", "stream_error_floods")

    def tick(self, now: float) -> None:
        """Time passed: act on whatever has been waited for too long."""
        if self.closing:
            return
        try:
            self._expect_progress(now)
            self.streams.expire(now)
            self.streams.expire_idle(now)
            self._lifetime.tick(now)
        except H2ConnectionError as error:
            self.end_with(error)
        else:
            self.closing = self._lifetime.over

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to go elsewhere, and close when its streams have ended or `grace_seconds` passed.

        Streams that never end by themselves are ended at once.
        """
        if not self.closing:
            self._lifetime.drain(now, grace_seconds)
            self.closing = self._lifetime.over

    def end_now(self) -> None:
        """End every stream with UNAVAILABLE and close."""
        self._lifetime.end_now()
        self.closing = True

    def end_with(self, error: H2ConnectionError) -> None:
        """Close because of what the client did, here or at the socket."""
        if not self.closing:
            self.closing = True
            error.count(self._counters)
            self.outbox.put(frames.goaway(self.streams.last_id, error.code, error.reason))
            self.streams.lose()

    def set_writable(self, writable: bool) -> None:
        """The socket takes bytes again, or no more for now."""
        self.outbox.writable = writable
        if writable:
            self.outbox.push_ready()
            self._intake.credit()

    def lost(self) -> None:
        """The socket is gone."""
        self.closing = True
        self._counters.connections_closed += 1
        self.streams.lose()
        self.outbox.close()

    def _expect_progress(self, now: float) -> None:
        if not self._control.settled and now - self._lifetime.began_at > self._limits.handshake_seconds:
            raise H2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came", "handshake_timeouts")
        blocks = self._intake.blocks
        if blocks.stream_id and now - blocks.started_at > self._limits.header_block_seconds:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block does not end", "header_timeouts")
