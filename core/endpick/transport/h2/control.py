"""Handles the frames of one connection that carry no request: SETTINGS, PING, RST_STREAM, WINDOW_UPDATE and others."""

from __future__ import annotations

from typing import Final

from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, H2StreamError, RateBudget
from endpick.transport.h2.frames import ACK, MAX_STREAM_ID, FrameType, parse_settings
from endpick.transport.h2.lifetime import WAITING_FOR_SETTINGS, Lifetime
from endpick.transport.h2.stream import AWAITED, RECV_RST_STREAM
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import TransportCounters

# Budgets per connection. Each frame costs one; those that cost us more than their sender cost more.
_FRAME_BURST: Final = 20_000
_FRAMES_PER_SECOND: Final = 20_000
_PING_COST: Final = 20.0
_SETTINGS_COST: Final = 200.0
"""A change of the initial window visits every stream."""
_EMPTY_DATA_COST: Final = 200.0
# Gateways reset streams whose clients are gone. More than this is a rapid-reset attack (CVE-2023-44487).
_UNANSWERED_RESET_BURST: Final = 8192
_UNANSWERED_RESETS_PER_SECOND: Final = 500

_PRIORITY: Final = int(FrameType.PRIORITY)
_SETTINGS: Final = int(FrameType.SETTINGS)
_PUSH_PROMISE: Final = int(FrameType.PUSH_PROMISE)
_PING: Final = int(FrameType.PING)
_GOAWAY: Final = int(FrameType.GOAWAY)
_WINDOW_UPDATE: Final = int(FrameType.WINDOW_UPDATE)


class ControlFrames:
    """Handles every frame but DATA, HEADERS and CONTINUATION.

    Its methods raise `H2ConnectionError` or `H2StreamError` if the client breaks a rule.
    """

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
        """Handle one frame other than RST_STREAM; frames of unknown types are ignored (RFC 9113 section 4.1)."""
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
        """Handle RST_STREAM. Envoy ends nearly every stream this way; only resets before any answer are suspicious."""
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
