"""The limits that a transport sets to its clients, and the events that it counts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES

RUSH_CONNECTIONS: Final = 4
"""Of one address in a rush, unless told otherwise: as many probes and scrapes as come at one moment."""


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """How many connections a port takes, from whom, and what is left for other ports."""

    max_connections: int
    max_peer_share: float
    handshake_seconds: float
    """For the TLS handshake."""
    reserved_descriptors: int
    """File descriptors that are left for others when this port has as many connections as it can."""
    connections_flag: str
    """What changes `max_connections`, for the log."""
    peer_flag: str
    """What changes `max_peer_share`, for the log."""
    keeps_busy: bool = True
    """Whether a connection that has something to do keeps its seat in any case."""
    rush_connections: int | None = None
    """What an address may have in a tenth of a second while connections come faster than they can be taken; None: any. See `Rush`."""
    max_handshake_bytes: int = MOST_HANDSHAKE_BYTES
    """Of one client, for its TLS handshake."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server; the defaults suit Envoy, which resets nearly every stream and opens one connection per thread.

    Rates are token buckets per connection: `burst` at once, refilled at `per_second`.
    """

    max_message_bytes: int = 64 * 1024 * 1024
    """Largest gRPC message taken; a longer one ends its stream with RESOURCE_EXHAUSTED.

    Twice the largest request body: a gateway that buffers sends a body in one message, and one that is too large must arrive to get a 413.
    """
    max_connections: int = 1024
    """Handshakes included. For one more, the h2 transport closes one without streams; if none is, the new one."""
    max_envelope_bytes: int = 256 * 1024
    """What a message may hold beside its body: headers, attributes and metadata; more ends its stream with INVALID_ARGUMENT."""
    read_bytes_per_turn: int = 64 * 1024
    """What the h2 transport takes of one connection at most before others have their turn."""
    read_seconds_per_turn: float = 0.002
    """How long it may take to act on that: a request of a hundred bytes costs as much as forty kilobytes of a body."""
    max_peer_share: float = 0.5
    """Of `max_connections`, for one IPv4 address or one /64 of IPv6 addresses, and of what a /64 may have, for one of its addresses.

    Of what others leave, the same share, so that several that take what they can leave seats: with 0.5, as many as are free.

    The grpcio transport does not tell the addresses of a /64 apart.
    """
    reserved_descriptors: int = 128
    """File descriptors that connections leave to health, metrics, logs and plugins; at most half of all."""
    connections_flag: str = "--grpc-max-connections"
    """What changes `max_connections`, for the log."""
    keeps_busy: bool = True
    """Whether a connection with streams keeps its seat in any case. Not where all is answered at once: what stays open there is a watch,
    which its client asks for again, or a question that does not end."""
    rush_connections: int | None = None
    """As `AcceptLimits` has it. Not where gateways connect: one of the address of others would be closed with them."""
    max_concurrent_streams: int = 4096
    """Per connection. A stream lives as long as the model answers, so this is also the number of answers under way."""
    max_header_bytes: int = 16 * 1024
    """Applies to the compressed header block and to the header list that it decodes to."""
    max_continuation_frames: int = 16
    max_frame_bytes: int = 64 * 1024
    stream_window_bytes: int = 1024 * 1024
    connection_window_bytes: int = 16 * 1024 * 1024
    max_stream_output_bytes: int = 32 * 1024 * 1024
    """Replies of one stream that wait for the client to read them."""
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
    """Streams ended because the client broke the protocol."""

    handshake_seconds: float = 10.0
    """For the client's SETTINGS, and before them as long again for the TLS handshake."""
    max_handshake_bytes: int = MOST_HANDSHAKE_BYTES
    """Of one client, for its TLS handshake; the grpcio transport has a limit of its own."""
    header_block_seconds: float = 10.0
    """From HEADERS to the last CONTINUATION."""
    write_stall_seconds: float = 30.0
    """How long a client may read nothing while bytes wait for it."""
    keepalive_idle_seconds: float = 60.0
    """Silence after which the transport sends the client a PING."""
    keepalive_timeout_seconds: float = 20.0
    max_connection_idle_seconds: float = 3600.0
    """Without any stream."""
    max_stream_idle_seconds: float = 3600.0
    """Without a byte from the client."""
    max_connection_age_seconds: float | None = None
    """None: no limit. The age of each connection varies at random by 5 %, so that not all end at the same time."""
    max_connection_age_grace_seconds: float = 60.0

    def tolerating(self, times: float) -> Self:
        """These, with rates that are so many times as high."""
        rates: dict[str, Any] = {name: getattr(self, name) * times for name in _RATES}
        return replace(self, **rates | {name: max(1, round(rates[name])) for name in _BURSTS})

    @property
    def accepting(self) -> AcceptLimits:
        """Those of the listening socket."""
        return AcceptLimits(
            max_connections=self.max_connections,
            max_peer_share=self.max_peer_share,
            handshake_seconds=self.handshake_seconds,
            reserved_descriptors=self.reserved_descriptors,
            connections_flag=self.connections_flag,
            peer_flag="--max-connections-share",
            keeps_busy=self.keeps_busy,
            rush_connections=self.rush_connections,
            max_handshake_bytes=self.max_handshake_bytes,
        )


_BURSTS = tuple(field.name for field in fields(Limits) if field.name.endswith("_burst"))
_RATES = (*_BURSTS, *(field.name for field in fields(Limits) if field.name.endswith("_per_second")))


@dataclass(slots=True)
class TransportCounters:
    """Monotonic counts since start, one object per server; what is open now is a difference of two of them.

    Each abuse guard of `Limits` has its counter here. The grpcio transport only counts what its library reports:
    streams, messages, session faults and refusals; and what it guards itself: connections, floods of resets, and memory.
    """

    connections_accepted: int = 0
    """More than were opened or refused by `tls_handshake_failures`, and by those that ended before their handshake did."""
    connections_opened: int = 0
    connections_closed: int = 0
    streams_opened: int = 0
    streams_closed: int = 0
    streams_reset_by_peer: int = 0
    """Envoy ends nearly every stream this way: not an error."""
    messages_received: int = 0
    messages_sent: int = 0
    session_faults: int = 0
    """Sessions that raised anything but `ProtocolError`: a bug of endpick."""
    session_refusals: int = 0
    """Streams ended with a gRPC status because the session raised `ProtocolError`."""
    deadlines_exceeded: int = 0
    unknown_methods: int = 0
    not_grpc: int = 0
    """HTTP/2 requests that are not gRPC, answered with 405 or 415."""

    connections_refused: int = 0
    """Beyond `max_connections`, and none was idle."""
    connections_refused_peer: int = 0
    """Beyond what one address may have, and none of its connections was idle, or more than can be taken, without a pause."""
    connections_evicted: int = 0
    """Connections without streams, or with streams that say nothing, that were closed because others needed the room."""
    accept_pauses: int = 0
    """Times that accepting paused because no file descriptor was left but those in reserve."""
    tls_handshake_failures: int = 0
    """Those that took too long included."""
    tls_handshakes_too_long: int = 0
    """Those of them in which the client sent more than `--tls-max-handshake-size`."""
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
    envelopes_too_large: int = 0
    """Messages with more headers, attributes or metadata than `--grpc-max-envelope-size` allows."""
    reads_deferred: int = 0
    """Times a connection sent so much that others had their turn first; not an error."""
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
