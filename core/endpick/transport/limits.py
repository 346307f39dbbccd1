"""Limits of a gRPC port, and the events it counts."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one gRPC port; Envoy opens one connection per worker thread."""

    max_connections: int = 1024  # TLS handshakes included; more are closed at once
    max_concurrent_streams: int = 4096
    """Streams that one connection may have open at a time; further ones are refused."""
    max_message_bytes: int = 64 * 1024 * 1024
    """Twice the largest request body, so that a body that is too large can be answered with 413."""
    max_header_bytes: int = 16 * 1024  # of a header block, compressed and decoded
    handshake_seconds: float = 10.0  # for the TLS handshake, and again for the first SETTINGS
    keepalive_idle_seconds: float = 60.0  # silence before a PING is sent
    keepalive_timeout_seconds: float = 20.0  # for the answer to the PING
    max_connection_age_seconds: float | None = None  # plus or minus 5 %; None: no limit
    max_connection_age_grace_seconds: float = 60.0


@dataclass(slots=True)
class TransportCounters:
    """Event counts of one port. The grpcio transport counts streams, messages, session faults and refusals only."""

    connections_accepted: int = 0
    connections_opened: int = 0
    connections_closed: int = 0
    streams_opened: int = 0
    streams_closed: int = 0
    streams_reset_by_peer: int = 0
    """Envoy ends nearly every stream this way: not an error."""
    messages_received: int = 0
    messages_sent: int = 0
    session_faults: int = 0
    """Failed sessions: a bug in endpick."""
    session_refusals: int = 0
    """Streams ended because of a wrong message."""
    deadlines_exceeded: int = 0
    unknown_methods: int = 0
    not_grpc: int = 0
    """HTTP/2 requests that are not gRPC, answered with 405 or 415."""

    connections_refused: int = 0
    accept_pauses: int = 0
    """No file descriptor was left."""
    tls_handshake_failures: int = 0
    http1_connections: int = 0
    tls_on_plain_text: int = 0
    bad_prefaces: int = 0
    connection_errors: int = 0
    stream_errors: int = 0
    handshake_timeouts: int = 0
    header_timeouts: int = 0
    header_floods: int = 0
    streams_refused: int = 0
    """Beyond `max_concurrent_streams`, or opened while draining."""
    reset_floods: int = 0
    frame_floods: int = 0
    """Too many PING, SETTINGS, empty DATA or other control frames."""
    stream_error_floods: int = 0
    slow_readers: int = 0
    messages_too_large: int = 0
    compressed_messages: int = 0
    idle_connections: int = 0
    aged_connections: int = 0
    keepalive_timeouts: int = 0
    certificate_reloads: int = 0
    certificate_reload_failures: int = 0

    @property
    def streams_active(self) -> int:
        """Number of streams that are open now."""
        return self.streams_opened - self.streams_closed

    def snapshot(self) -> dict[str, int]:
        """Return all counts by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
