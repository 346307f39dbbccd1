"""How one connection ages: silence, old age, draining."""

from __future__ import annotations

import random

from endpick.extproc.stream import CloseCause
from endpick.transport.counters import TransportCounters
from endpick.transport.h2 import frames
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError
from endpick.transport.h2.grpc import Status
from endpick.transport.h2.streams import Streams
from endpick.transport.limits import Limits

__all__ = ["Lifetime"]

_PROBE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 1.0
"""How long the last replies and statuses may take once the grace is over."""
_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"is there"


class Lifetime:
    """Decides when a connection has lived, from the time alone."""

    def __init__(self, limits: Limits, counters: TransportCounters, streams: Streams, now: float) -> None:
        self._limits = limits
        self._counters = counters
        self._streams = streams
        self._outbox = streams.outbox
        self._busy_at = self._heard_at = self.began_at = now
        self._last_id_seen = 0
        self._pinged_at: float | None = None
        self._max_age = limits.max_connection_age_seconds
        if self._max_age is not None:
            # Spread, so that connections opened together do not end together.
            self._max_age *= random.uniform(0.95, 1.05)  # noqa: S311
        self._drain_started_at: float | None = None
        self._drain_ends_at = 0.0
        self._overdue = False

    @property
    def over(self) -> bool:
        """The last stream that will ever be served has ended, or its client does not take what is left of it."""
        return not self._streams.accepting and (self._overdue or not self._streams.open)

    def heard(self, now: float) -> None:
        """Something arrived."""
        self._heard_at = now
        self._pinged_at = None

    def tick(self, now: float) -> None:
        """Time passed.

        Raises:
            H2ConnectionError: the client is not there any more.
        """
        self._keep_alive(now)
        if self._drain_started_at is not None:
            if now - self._drain_started_at > _PROBE_SECONDS:
                self.call_last()
            if now >= self._drain_ends_at:
                self.end_now()
                self._overdue = now - self._drain_ends_at > _LAST_WORDS_SECONDS
        elif self._max_age is not None and now - self.began_at > self._max_age:
            self._counters.aged_connections += 1
            self.drain(now, self._limits.max_connection_age_grace_seconds)
        elif self._streams.open or self._streams.last_id != self._last_id_seen:
            self._busy_at = now
            self._last_id_seen = self._streams.last_id
        elif now - self._busy_at > self._limits.max_connection_idle_seconds:
            self._counters.idle_connections += 1
            self.drain(now, 0.0)

    def drain(self, now: float, grace_seconds: float) -> None:
        """Ask the client to go elsewhere; end streams that never end by themselves."""
        if self._drain_started_at is None:
            self._drain_started_at = now
            self._drain_ends_at = now + grace_seconds
            # Two GOAWAYs, as RFC 9113 §6.8 has it: requests that are under way to us while the first travels are still served.
            self._outbox.put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
            self._outbox.put(frames.ping(_DRAIN_PING, ack=False))
            self._streams.end_all(CloseCause.DRAIN, Status.UNAVAILABLE, "the server is draining", endless_only=True)

    def answered(self, ping: bytes) -> None:
        """The client answered a PING; with the one that followed GOAWAY it says that it will open no more streams."""
        if ping == _DRAIN_PING and self._drain_started_at is not None:
            self.call_last()

    def call_last(self) -> None:
        """Say which stream is the last that will be served."""
        if self._streams.accepting:
            self._streams.accepting = False
            self._outbox.put(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))

    def end_now(self) -> None:
        """End every stream with UNAVAILABLE."""
        self._streams.end_all(CloseCause.DRAIN, Status.UNAVAILABLE, "the server is stopping")
        self.call_last()

    def _keep_alive(self, now: float) -> None:
        if self._pinged_at is None:
            if now - self._heard_at > self._limits.keepalive_idle_seconds:
                self._pinged_at = now
                self._outbox.put(frames.ping(_KEEPALIVE_PING, ack=False))
        elif now - self._pinged_at > self._limits.keepalive_timeout_seconds:
            raise H2ConnectionError(ErrorCode.NO_ERROR, "no answer to PING", "keepalive_timeouts")
