"""The life of one connection: its states, and what the passing of time does to it."""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Final

from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError, InvalidTransitionError
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits, TransportCounters


class ConnectionState(IntEnum):
    """Where a connection is in its life; a later state has a higher number."""

    WAITING_FOR_PREFACE = 0
    WAITING_FOR_SETTINGS = 1
    """The client's preface has come; the SETTINGS frame that must follow it has not."""
    OPEN = 2
    DRAINING = 3
    """The first GOAWAY has been sent: the client is to go elsewhere, but streams that it opens meanwhile are still served."""
    LAST_CALL = 4
    """The last GOAWAY has been sent, which names the last stream that is served; later ones are refused."""
    CLOSING = 5
    """The owner of the socket writes what is left and closes it; what still arrives is not read."""
    CLOSED = 6
    """The socket is gone."""


# Plain integers: a member of an enumeration costs several times as much to compare. Literal and Final, so that mypyc compiles them in;
# a test holds them equal to the members.
WAITING_FOR_PREFACE: Final = 0
WAITING_FOR_SETTINGS: Final = 1
OPEN: Final = 2
DRAINING: Final = 3
LAST_CALL: Final = 4
CLOSING: Final = 5
CLOSED: Final = 6

_MAY_FOLLOW: dict[int, tuple[int, ...]] = {
    WAITING_FOR_PREFACE: (WAITING_FOR_SETTINGS, LAST_CALL, CLOSING, CLOSED),
    WAITING_FOR_SETTINGS: (OPEN, DRAINING, LAST_CALL, CLOSING, CLOSED),
    OPEN: (DRAINING, LAST_CALL, CLOSING, CLOSED),
    DRAINING: (LAST_CALL, CLOSING, CLOSED),
    LAST_CALL: (CLOSING, CLOSED),
    CLOSING: (CLOSED,),
    CLOSED: (),
}
"""A drain skips OPEN if it begins before the client's SETTINGS have come, and DRAINING if there is no time for it."""

_DRAIN_PING = b"draining"
_DRAIN_PING_SECONDS = 1.0
"""How long the client may take to answer the PING that follows the first GOAWAY."""
_KEEPALIVE_PING = b"is there"
_LAST_REPLIES_SECONDS = 1.0
"""How long the last replies and statuses may take once the grace period is over."""


class Lifetime:
    """The state of one connection, and the only one to change it."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, now: float) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self.state = WAITING_FOR_PREFACE
        """A `ConnectionState`."""
        self.closing = False
        """Whether the state is CLOSING or later; the owner of the socket asks after each read."""
        self.heard_at = now
        """When something arrived last."""
        self._began_at = now
        self._busy_at = now
        self._last_id_seen = 0
        self._pinged_at = now
        """When the client was last asked whether it is there; it has answered if it was heard since."""
        self._max_age = limits.max_connection_age_seconds
        if self._max_age is not None:
            # Spread, so that connections opened together do not end together.
            self._max_age *= random.uniform(0.95, 1.05)  # noqa: S311
        self._drain_started_at: float | None = None
        self._drain_ends_at = 0.0

    def enter(self, state: int) -> None:
        """Go to another state.

        Raises:
            InvalidTransitionError: that state may not follow the present one: a bug in endpick.
        """
        if state not in _MAY_FOLLOW[self.state]:
            raise InvalidTransitionError(f"{ConnectionState(state).name} after {ConnectionState(self.state).name}")
        self.state = state
        self.closing = state >= CLOSING

    def settings_received(self) -> None:
        """The client has sent SETTINGS."""
        if self.state == WAITING_FOR_SETTINGS:
            self.enter(OPEN if self._drain_started_at is None else DRAINING)

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to go elsewhere; end streams that never end by themselves."""
        if self._drain_started_at is not None:
            return
        self._drain_started_at = now
        self._drain_ends_at = now + grace_seconds
        # A client that has not sent its SETTINGS yet may still send them, and requests after them.
        if self.state == OPEN:
            self.enter(DRAINING)
        # Two GOAWAYs, as RFC 9113 section 6.8 has it: requests that are under way to us while the first travels are still served.
        self._outbox.put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
        self._outbox.put(frames.ping(_DRAIN_PING, ack=False))
        self._streams.end_endless("the server is draining")

    def ping_answered(self, payload: bytes) -> None:
        """The client has answered a PING; by answering the one after the first GOAWAY it says that it opens no more streams."""
        if self.state == DRAINING and payload == _DRAIN_PING:
            self._call_last()

    def end_streams(self) -> None:
        """End every stream with UNAVAILABLE, and serve no further one."""
        self._streams.end_all("the server is stopping")
        if self.state < LAST_CALL:
            self._call_last()

    def close_after_last_stream(self) -> None:
        """Begin to close once the last stream that is served has ended."""
        if self.state == LAST_CALL and not self._streams.open:
            self.enter(CLOSING)

    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream is idle as RFC 9113 has it, so that frames on it are an error.

        After the last GOAWAY none is: the client may have opened any before it read that, and what it sends on them is ignored.
        """
        return stream_id > self._streams.last_id and self.state < LAST_CALL

    def idle_since(self) -> float:
        """Since when there has been no stream, as the last tick saw it; for a caller that sees none now."""
        return self._busy_at if self._streams.last_id == self._last_id_seen else self.heard_at

    def tick(self, now: float) -> None:
        """Time has passed.

        Raises:
            H2ConnectionError: the client is not there any more, or has not sent SETTINGS in time.
        """
        self._keep_alive(now)
        if self._drain_started_at is not None:
            self._go_on_draining(now, self._drain_started_at)
        elif self._max_age is not None and now - self._began_at > self._max_age:
            self._counters.aged_connections += 1
            self.drain(now, self._limits.max_connection_age_grace_seconds)
        elif self._streams.open or self._streams.last_id != self._last_id_seen:
            self._busy_at = now
            self._last_id_seen = self._streams.last_id
        elif now - self._busy_at > self._limits.max_connection_idle_seconds:
            self._counters.idle_connections += 1
            self.drain(now, 0.0)

    def require_settings(self, now: float) -> None:
        """Raise `H2ConnectionError` if the client's first SETTINGS are overdue."""
        if self.state <= WAITING_FOR_SETTINGS and now - self._began_at > self._limits.handshake_seconds:
            raise H2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came", "handshake_timeouts")

    def _keep_alive(self, now: float) -> None:
        if self._pinged_at <= self.heard_at:
            if now - self.heard_at > self._limits.keepalive_idle_seconds:
                self._pinged_at = now
                self._outbox.put(frames.ping(_KEEPALIVE_PING, ack=False))
        elif now - self._pinged_at > self._limits.keepalive_timeout_seconds:
            raise H2ConnectionError(ErrorCode.NO_ERROR, "no answer to PING", "keepalive_timeouts")

    def _go_on_draining(self, now: float, started_at: float) -> None:
        if now - started_at > _DRAIN_PING_SECONDS and self.state < LAST_CALL:
            self._call_last()
        if now >= self._drain_ends_at:
            self.end_streams()
            if now - self._drain_ends_at > _LAST_REPLIES_SECONDS:
                self.enter(CLOSING)

    def _call_last(self) -> None:
        """Tell the client which stream is the last that is served."""
        self.enter(LAST_CALL)
        self._outbox.put(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))
