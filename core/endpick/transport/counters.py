"""What the transport counts, as plain integers, for whoever exports them."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["TransportCounters"]


@dataclass(slots=True)
class TransportCounters:
    """Monotonic counts since start, one object per server; what is open now is a difference of two of them.

    Each abuse guard of `Limits` has its counter here. The grpcio transport moves only those its library tells of:
    streams, messages, session faults and refusals.
    """

    connections_accepted: int = 0
    """With TLS, more than were opened or refused: handshakes that failed."""
    connections_opened: int = 0
    connections_closed: int = 0
    streams_opened: int = 0
    streams_closed: int = 0
    streams_reset_by_peer: int = 0
    """Envoy ends nearly every stream this way: not an error."""
    messages_received: int = 0
    messages_sent: int = 0
    session_faults: int = 0
    """Sessions that raised anything but `ProtocolError`: a bug of ours."""
    session_refusals: int = 0
    """Streams ended with a gRPC status because the session raised `ProtocolError`."""
    deadlines_exceeded: int = 0
    unknown_methods: int = 0
    not_grpc: int = 0
    """HTTP/2 requests that are not gRPC, answered with 405 or 415."""

    connections_refused: int = 0
    """Beyond `max_connections`."""
    http1_connections: int = 0
    tls_on_plain_text: int = 0
    bad_prefaces: int = 0
    connection_errors: int = 0
    """Connections that a GOAWAY with an error ended, whatever the error."""
    stream_errors: int = 0
    """Streams that a RST_STREAM with an error ended, whatever the error."""
    handshake_timeouts: int = 0
    header_timeouts: int = 0
    header_floods: int = 0
    streams_refused: int = 0
    """Beyond `max_concurrent_streams`, or opened while draining."""
    reset_floods: int = 0
    ping_floods: int = 0
    settings_floods: int = 0
    empty_frame_floods: int = 0
    control_frame_floods: int = 0
    stream_error_floods: int = 0
    slow_readers: int = 0
    messages_too_large: int = 0
    compressed_messages: int = 0
    buffer_exhaustions: int = 0
    """Streams ended because all connections together hold `max_buffered_bytes`."""
    idle_connections: int = 0
    idle_streams: int = 0
    aged_connections: int = 0
    keepalive_timeouts: int = 0
    certificate_reloads: int = 0
    certificate_reload_failures: int = 0

    @property
    def connections_active(self) -> int:
        """Connections open now."""
        return self.connections_opened - self.connections_closed

    @property
    def streams_active(self) -> int:
        """Streams open now."""
        return self.streams_opened - self.streams_closed

    def snapshot(self) -> dict[str, int]:
        """Every count by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
