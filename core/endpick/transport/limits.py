"""How much one gateway, or somebody who is none, may ask of a transport."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server; the defaults suit Envoy: nearly every stream reset, one connection per thread.

    Rates are token buckets per connection: `burst` at once, refilled at `per_second`.
    """

    max_message_bytes: int = 64 * 1024 * 1024
    """Largest gRPC message taken; a longer one ends its stream with RESOURCE_EXHAUSTED.

    Twice the largest request body: a gateway that buffers sends a body in one message, and one that is too large deserves its 413.
    """
    max_connections: int = 1024
    """The h2 transport counts a connection when its TLS handshake is over; one that is not may take `handshake_seconds`."""
    max_concurrent_streams: int = 4096
    """Per connection. A stream lives as long as the model answers, so this is also the number of answers under way."""
    max_header_bytes: int = 16 * 1024
    """Both the compressed header block and the header list it stands for."""
    max_continuation_frames: int = 16
    max_frame_bytes: int = 64 * 1024
    stream_window_bytes: int = 1024 * 1024
    connection_window_bytes: int = 16 * 1024 * 1024
    max_stream_output_bytes: int = 32 * 1024 * 1024
    """Replies that one stream may have waiting for its reader."""
    max_connection_output_bytes: int = 8 * 1024 * 1024
    """Bytes that the operating system has not taken yet."""
    max_buffered_bytes: int = 512 * 1024 * 1024
    """Partial messages and waiting replies of all connections together."""

    unanswered_resets_burst: int = 8192
    unanswered_resets_per_second: float = 500.0
    pings_burst: int = 1000
    pings_per_second: float = 500.0
    settings_burst: int = 100
    settings_per_second: float = 10.0
    empty_frames_burst: int = 100
    empty_frames_per_second: float = 10.0
    control_frames_burst: int = 20_000
    control_frames_per_second: float = 20_000.0
    """PRIORITY, WINDOW_UPDATE and unknown frames."""
    stream_errors_burst: int = 1000
    stream_errors_per_second: float = 100.0
    """Streams that have to be ended because their client breaks the rules."""

    handshake_seconds: float = 10.0
    """From connect to the client's SETTINGS, and before that as long again for the TLS handshake."""
    header_block_seconds: float = 10.0
    """From HEADERS to the last CONTINUATION."""
    write_stall_seconds: float = 30.0
    """How long a client may take nothing while bytes wait for it."""
    keepalive_idle_seconds: float = 60.0
    """Silence after which the client is asked with a PING whether it is there."""
    keepalive_timeout_seconds: float = 20.0
    max_connection_idle_seconds: float = 3600.0
    """Without any stream."""
    max_stream_idle_seconds: float = 3600.0
    """Without a byte from the client."""
    max_connection_age_seconds: float | None = None
    """None: connections live as long as they like. A tenth of it is spread at random over connections."""
    max_connection_age_grace_seconds: float = 60.0
