"""The state of one connection, and the frames that control it."""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Final

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import (
    ACK,
    MAX_STREAM_ID,
    ErrorCode,
    FrameType,
    H2ConnectionError,
    H2StreamError,
    InvalidTransitionError,
    RateBudget,
    parse_settings,
)
from endpick.transport.h2.stream import AWAITED, RECV_RST_STREAM
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits, TransportCounters


class ConnectionState(IntEnum):
    """The states of a connection, in the order in which they follow each other."""

    WAITING_FOR_PREFACE = 0
    WAITING_FOR_SETTINGS = 1
    OPEN = 2
    DRAINING = 3  # first GOAWAY sent; new streams are served
    LAST_CALL = 4  # last GOAWAY sent; new streams are refused
    CLOSING = 5  # nothing more is read
    CLOSED = 6


WAITING_FOR_PREFACE: Final = ConnectionState.WAITING_FOR_PREFACE
WAITING_FOR_SETTINGS: Final = ConnectionState.WAITING_FOR_SETTINGS
OPEN: Final = ConnectionState.OPEN
DRAINING: Final = ConnectionState.DRAINING
LAST_CALL: Final = ConnectionState.LAST_CALL
CLOSING: Final = ConnectionState.CLOSING
CLOSED: Final = ConnectionState.CLOSED

_TRANSITIONS: Final[dict[ConnectionState, tuple[ConnectionState, ...]]] = {
    WAITING_FOR_PREFACE: (WAITING_FOR_SETTINGS, LAST_CALL, CLOSING, CLOSED),
    WAITING_FOR_SETTINGS: (OPEN, DRAINING, LAST_CALL, CLOSING, CLOSED),
    OPEN: (DRAINING, LAST_CALL, CLOSING, CLOSED),
    DRAINING: (LAST_CALL, CLOSING, CLOSED),
    LAST_CALL: (CLOSING, CLOSED),
    CLOSING: (CLOSED,),
    CLOSED: (),
}

_DRAIN_PING: Final = b"draining"
_DRAIN_PING_SECONDS: Final = 1.0
_KEEPALIVE_PING: Final = b"is there"
_LAST_REPLIES_SECONDS: Final = 1.0  # for the client to read the last replies
MAX_IDLE_SECONDS: Final = 3600.0


class Lifetime:
    """Holds the state of a connection, and drains or closes it when a timer expires."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, now: float) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self.state: ConnectionState = WAITING_FOR_PREFACE
        self.closing = False
        self.received_at = now
        self._began_at = now
        self._busy_at = now
        self._busy_id = 0
        self._pinged_at = now
        self._max_age = limits.max_connection_age_seconds
        if self._max_age is not None:
            self._max_age *= random.uniform(0.95, 1.05)  # noqa: S311 - connections opened together should not end together
        self._drain_started_at: float | None = None
        self._drain_ends_at = 0.0

    def enter(self, state: ConnectionState) -> None:
        """Enter a state; raises `InvalidTransitionError` if it cannot follow the current one."""
        if state not in _TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"{state.name} after {self.state.name}")
        self.state = state
        self.closing = state >= CLOSING

    def settings_received(self) -> None:
        """Open the connection after the client's first SETTINGS; later ones change nothing."""
        if self.state is WAITING_FOR_SETTINGS:
            self.enter(OPEN if self._drain_started_at is None else DRAINING)

    def drain(self, now: float, grace_seconds: float) -> None:
        """Start a graceful shutdown (RFC 9113 section 6.8); endless streams end now."""
        if self._drain_started_at is not None:
            return
        self._drain_started_at = now
        self._drain_ends_at = now + grace_seconds
        if self.state is OPEN:  # before SETTINGS, requests may still follow
            self.enter(DRAINING)
        self._outbox.put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
        self._outbox.put(frames.ping(_DRAIN_PING, ack=False))
        self._streams.end_all("the server is draining", endless_only=True)

    def ping_answered(self, payload: bytes) -> None:
        """Send the last GOAWAY once the client has acknowledged the PING of the drain."""
        if self.state is DRAINING and payload == _DRAIN_PING:
            self._send_last_goaway()

    def end_streams(self) -> None:
        """End every stream with UNAVAILABLE and refuse new ones."""
        self._streams.end_all("the server is stopping")
        if self.state < LAST_CALL:
            self._send_last_goaway()

    def close_after_last_stream(self) -> None:
        """Close if draining and no stream is open."""
        if self.state is LAST_CALL and not self._streams.open:
            self.enter(CLOSING)

    def is_idle(self, stream_id: int) -> bool:
        """Whether the client has not opened a stream yet; always False after the last GOAWAY."""
        return stream_id > self._streams.last_id and self.state < LAST_CALL

    def tick(self, now: float) -> None:
        """Enforce the timeouts; raises `H2ConnectionError` if the handshake or a PING is overdue."""
        if self.state <= WAITING_FOR_SETTINGS and now - self._began_at > self._limits.handshake_seconds:
            raise H2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS received", "handshake_timeouts")
        self._keep_alive(now)
        last_id = self._streams.last_id
        if self._drain_started_at is not None:
            self._continue_drain(now, self._drain_started_at)
        elif self._max_age is not None and now - self._began_at > self._max_age:
            self._counters.aged_connections += 1
            self.drain(now, self._limits.max_connection_age_grace_seconds)
        elif self._streams.open or last_id != self._busy_id:
            self._busy_at, self._busy_id = now, last_id
        elif now - self._busy_at > MAX_IDLE_SECONDS:
            self._counters.idle_connections += 1
            self.drain(now, 0.0)

    def _keep_alive(self, now: float) -> None:
        if self._pinged_at <= self.received_at:
            if now - self.received_at > self._limits.keepalive_idle_seconds:
                self._pinged_at = now
                self._outbox.put(frames.ping(_KEEPALIVE_PING, ack=False))
        elif now - self._pinged_at > self._limits.keepalive_timeout_seconds:
            raise H2ConnectionError(ErrorCode.NO_ERROR, "no answer to PING", "keepalive_timeouts")

    def _continue_drain(self, now: float, started_at: float) -> None:
        if now - started_at > _DRAIN_PING_SECONDS and self.state < LAST_CALL:
            self._send_last_goaway()
        if now >= self._drain_ends_at:
            self.end_streams()
            if now - self._drain_ends_at > _LAST_REPLIES_SECONDS:
                self.enter(CLOSING)

    def _send_last_goaway(self) -> None:
        self.enter(LAST_CALL)
        self._outbox.put(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))


# Per connection. Frames that cost us more than their sender spend more.
_FRAME_BURST: Final = 20_000
_FRAMES_PER_SECOND: Final = 20_000
_PING_COST: Final = 20.0
_SETTINGS_COST: Final = 200.0  # a change of the initial window visits every stream
_EMPTY_DATA_COST: Final = 200.0
# Bounds rapid resets (CVE-2023-44487); gateways reset streams of disconnected clients.
_UNANSWERED_RESET_BURST: Final = 8192
_UNANSWERED_RESETS_PER_SECOND: Final = 500

_PRIORITY: Final = int(FrameType.PRIORITY)
_SETTINGS: Final = int(FrameType.SETTINGS)
_PUSH_PROMISE: Final = int(FrameType.PUSH_PROMISE)
_PING: Final = int(FrameType.PING)
_GOAWAY: Final = int(FrameType.GOAWAY)
_WINDOW_UPDATE: Final = int(FrameType.WINDOW_UPDATE)


class ControlFrames:
    """Handles every frame but DATA, HEADERS and CONTINUATION. Raises `H2ConnectionError` and `H2StreamError`."""

    def __init__(self, counters: TransportCounters, streams: Streams, lifetime: Lifetime, now: float) -> None:
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self._lifetime = lifetime
        self._frames = RateBudget(_FRAME_BURST, _FRAMES_PER_SECOND, "control frames", "frame_floods", now)
        self._unanswered_resets = RateBudget(
            _UNANSWERED_RESET_BURST, _UNANSWERED_RESETS_PER_SECOND, "resets of streams before their answer", "reset_floods", now
        )

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Handle any frame but RST_STREAM; ignores unknown types (RFC 9113 section 4.1)."""
        if self._lifetime.state <= WAITING_FOR_SETTINGS and kind != _SETTINGS:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == _WINDOW_UPDATE:
            self._frames.spend(now)
            self._receive_window_update(stream_id, payload)
        elif kind == _PING:
            self._frames.spend(now, _PING_COST)
            self._receive_ping(flags, stream_id, payload)
        elif kind == _SETTINGS:
            self._frames.spend(now, _SETTINGS_COST)
            self._receive_settings(flags, stream_id, payload)
        else:
            self._frames.spend(now)
            if kind == _PRIORITY:
                _check_priority(stream_id, payload)
            elif kind == _GOAWAY:
                _check_goaway(stream_id, payload)
            elif kind == _PUSH_PROMISE:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "clients may not push")

    def receive_reset(self, stream_id: int, payload: bytes, now: float) -> None:
        """Handle RST_STREAM. Envoy ends nearly every stream this way, so only unanswered ones cost budget."""
        if not stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
        _require_length(payload, 4, "RST_STREAM")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            self._require_not_idle(stream_id, "RST_STREAM")
            self._frames.spend(now)
            return
        self._counters.streams_reset_by_peer += 1
        self._streams.close(stream, RECV_RST_STREAM, CloseCause.RESET)
        if stream.response is AWAITED:
            self._unanswered_resets.spend(now)

    def receive_empty_data(self, now: float) -> None:
        """Account for an empty DATA frame."""
        self._frames.spend(now, _EMPTY_DATA_COST)

    def _receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            _require_length(payload, 0, "SETTINGS acknowledgement")
            return
        values = parse_settings(payload)
        # The acknowledgement precedes DATA that the new windows release.
        self._outbox.put(frames.SETTINGS_ACK)
        self._outbox.apply_settings(values, list(self._streams.open.values()))
        self._lifetime.settings_received()

    def _receive_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        _require_length(payload, 8, "PING")
        if flags & ACK:
            self._lifetime.ping_answered(payload)
        else:
            self._outbox.put(frames.ping(payload, ack=True))

    def _receive_window_update(self, stream_id: int, payload: bytes) -> None:
        _require_length(payload, 4, "WINDOW_UPDATE")
        increment = int.from_bytes(payload, "big") & MAX_STREAM_ID
        if stream_id == 0:
            if not increment:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
            self._outbox.grow_window(increment)
            return
        self._require_not_idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._outbox.grow_stream_window(stream, increment)

    def _require_not_idle(self, stream_id: int, frame: str) -> None:
        if self._lifetime.is_idle(stream_id):
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame} on stream {stream_id}, which was never opened")


def _check_priority(stream_id: int, payload: bytes) -> None:
    if not stream_id:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
    if len(payload) != 5:
        raise H2StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
    if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
        raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def _check_goaway(stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")


def _require_length(payload: bytes, length: int, frame: str) -> None:
    if len(payload) != length:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"{frame} of {len(payload)} bytes")
