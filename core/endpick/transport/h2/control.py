"""Frames that steer a connection rather than carry a request, and how many of them a client may send."""

from __future__ import annotations

from collections.abc import Callable

from endpick.transport.h2 import frames
from endpick.transport.h2.budget import RateBudget
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError, H2StreamError
from endpick.transport.h2.frames import ACK, MAX_STREAM_ID, FrameType
from endpick.transport.h2.settings import parse
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits

__all__ = ["ControlFrames"]


class ControlFrames:
    """Acts on every frame of one connection but DATA, HEADERS and CONTINUATION."""

    def __init__(self, limits: Limits, streams: Streams, on_pong: Callable[[bytes], None], now: float) -> None:
        self._streams = streams
        self._outbox = streams.outbox
        self._on_pong = on_pong
        self._pings = RateBudget(limits.pings_burst, limits.pings_per_second, now)
        self._settings = RateBudget(limits.settings_burst, limits.settings_per_second, now)
        self._empty_frames = RateBudget(limits.empty_frames_burst, limits.empty_frames_per_second, now)
        self._others = RateBudget(limits.control_frames_burst, limits.control_frames_per_second, now)
        self._unanswered_resets = RateBudget(limits.unanswered_resets_burst, limits.unanswered_resets_per_second, now)
        self.settled = False
        """The client's first SETTINGS have come."""

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """Act on one frame.

        Raises:
            H2ConnectionError, H2StreamError: the frame is malformed, out of place, or one too many.
        """
        if not self.settled and kind != FrameType.SETTINGS:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        handler = _HANDLERS.get(kind)
        if handler is None:
            self._spend_other(now)
        else:
            handler(self, flags, stream_id, payload, now)

    def spend_empty_frame(self, now: float) -> None:
        """Account for a frame that says nothing.

        Raises:
            H2ConnectionError: one too many.
        """
        self._empty_frames.require(now, "empty frames", "empty_frame_floods")

    def _spend_other(self, now: float) -> None:
        self._others.require(now, "control frames", "control_frame_floods")

    def _priority(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        self._spend_other(now)
        _require_stream(stream_id, "PRIORITY")
        if len(payload) != 5:
            raise H2StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
        if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        _require_stream(stream_id, "RST_STREAM")
        _require_length(payload, 4, "RST_STREAM")
        self._require_not_idle(stream_id, "RST_STREAM")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            self._spend_other(now)
            return
        # Envoy resets nearly every stream once it has its answer; only those reset before any answer can be abuse.
        answered = stream.answered
        self._streams.peer_reset(stream)
        if not answered:
            self._unanswered_resets.require(now, "resets of streams before their answer", "reset_floods")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            _require_length(payload, 0, "SETTINGS acknowledgement")
            self._spend_other(now)
            return
        self._settings.require(now, "SETTINGS", "settings_floods")
        values = parse(payload)
        # Acknowledged before any DATA that the change lets go, so that the client knows which windows that DATA was sent under.
        self._outbox.put(frames.SETTINGS_ACK)
        self._outbox.apply(values, list(self._streams.open.values()))
        self.settled = True

    def _push_promise(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "clients may not push")

    def _ping(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        _require_length(payload, 8, "PING")
        self._pings.require(now, "PINGs", "ping_floods")
        if flags & ACK:
            self._on_pong(payload)
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
            self._outbox.grow(increment)
            return
        self._require_not_idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise H2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        stream = self._streams.open.get(stream_id)
        if stream is not None:
            self._outbox.grow_stream(stream, increment)

    def _require_not_idle(self, stream_id: int, frame: str) -> None:
        if stream_id > self._streams.last_id and self._streams.accepting:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame} on stream {stream_id}, which was never opened")


_HANDLERS: dict[int, Callable[[ControlFrames, int, int, bytes, float], None]] = {
    FrameType.PRIORITY: ControlFrames._priority,
    FrameType.RST_STREAM: ControlFrames._rst_stream,
    FrameType.SETTINGS: ControlFrames._on_settings,
    FrameType.PUSH_PROMISE: ControlFrames._push_promise,
    FrameType.PING: ControlFrames._ping,
    FrameType.GOAWAY: ControlFrames._goaway,
    FrameType.WINDOW_UPDATE: ControlFrames._window_update,
}


def _require_stream(stream_id: int, frame: str) -> None:
    if not stream_id:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{frame} on stream 0")


def _require_length(payload: bytes, length: int, frame: str) -> None:
    if len(payload) != length:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"{frame} of {len(payload)} bytes")
