"""The states of one connection: handshake, keepalive, age, and graceful shutdown."""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Final

from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, InvalidTransitionError
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits, TransportCounters


class ConnectionState(IntEnum):
    """The states of a connection, in order."""

    WAITING_FOR_PREFACE = 0
    WAITING_FOR_SETTINGS = 1
    OPEN = 2
    DRAINING = 3
    """The first GOAWAY has been sent; new streams are still served."""
    LAST_CALL = 4
    """The GOAWAY with the last stream id has been sent; later streams are refused."""
    CLOSING = 5
    """The owner of the socket writes the rest and closes it; nothing more is read."""
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
_LAST_REPLIES_SECONDS: Final = 1.0
"""How long the last replies may take to be read after the grace period."""
MAX_IDLE_SECONDS: Final = 3600.0


class Lifetime:
    """The state of one connection and its timers."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, now: float) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self.state: ConnectionState = WAITING_FOR_PREFACE
        self.closing = False
        self.heard_at = now
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
        """Change the state."""
        if state not in _TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"{state.name} after {self.state.name}")
        self.state = state
        self.closing = state >= CLOSING

    def settings_received(self) -> None:
        """Handle SETTINGS; the first opens the connection."""
        if self.state is WAITING_FOR_SETTINGS:
            self.enter(OPEN if self._drain_started_at is None else DRAINING)

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to open no more streams (RFC 9113 section 6.8), and end endless ones."""
        if self._drain_started_at is not None:
            return
        self._drain_started_at = now
        self._drain_ends_at = now + grace_seconds
        if self.state is OPEN:  # a client whose SETTINGS are outstanding may still send them, and requests after them
            self.enter(DRAINING)
        self._outbox.put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
        self._outbox.put(frames.ping(_DRAIN_PING, ack=False))
        self._streams.end_all("the server is draining", endless_only=True)

    def ping_answered(self, payload: bytes) -> None:
        """Handle a PING acknowledgement. That of the drain PING means that the client has seen the first GOAWAY."""
        if self.state is DRAINING and payload == _DRAIN_PING:
            self._call_last()

    def end_streams(self) -> None:
        """End every stream with UNAVAILABLE and refuse new ones."""
        self._streams.end_all("the server is stopping")
        if self.state < LAST_CALL:
            self._call_last()

    def close_after_last_stream(self) -> None:
        """Close if the last GOAWAY has been sent and no stream is open."""
        if self.state is LAST_CALL and not self._streams.open:
            self.enter(CLOSING)

    def is_idle(self, stream_id: int) -> bool:
        """True for a stream that was never opened; False after the last GOAWAY, when frames on such streams are ignored."""
        return stream_id > self._streams.last_id and self.state < LAST_CALL

    def tick(self, now: float) -> None:
        """Apply the timers."""
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
        if self._pinged_at <= self.heard_at:
            if now - self.heard_at > self._limits.keepalive_idle_seconds:
                self._pinged_at = now
                self._outbox.put(frames.ping(_KEEPALIVE_PING, ack=False))
        elif now - self._pinged_at > self._limits.keepalive_timeout_seconds:
            raise H2ConnectionError(ErrorCode.NO_ERROR, "no answer to PING", "keepalive_timeouts")

    def _continue_drain(self, now: float, started_at: float) -> None:
        if now - started_at > _DRAIN_PING_SECONDS and self.state < LAST_CALL:
            self._call_last()
        if now >= self._drain_ends_at:
            self.end_streams()
            if now - self._drain_ends_at > _LAST_REPLIES_SECONDS:
                self.enter(CLOSING)

    def _call_last(self) -> None:
        self.enter(LAST_CALL)
        self._outbox.put(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))
