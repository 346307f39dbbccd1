"""What grpcio is told to limit by itself."""

from __future__ import annotations

from typing import Final

from endpick.transport.address import ListenSettings

__all__ = ["options_of"]

_NEVER_MILLISECONDS = 2**31 - 1
_MOST_BYTES = 2**31 - 1
_PENDING_CONNECTIONS = 16
"""So many connections may have all their streams wait for Python before grpcio begins to cancel streams of any connection, by lot."""
_PENDING_BYTES: Final = 32 * 1024
"""Where memory is short it begins earlier, with a stream for each of so many bytes: one takes up to 15,000, and twice as many may wait."""
_LEAST_PENDING: Final = 2048
_MOST_PENDING = 2**31 - 1
_MOST_CONNECTIONS = 2**31 - 2
"""With one more, grpcio ends the process."""
_UNCOMPRESSED: Final = 1
"""Of the ways to compress messages only that which does not: grpcio unpacks a message before it looks how long it is then."""


def options_of(settings: ListenSettings, seats: int, memory_bytes: int) -> list[tuple[str, int]]:
    """What a server has to be given for these settings.

    Args:
        settings: Where it listens, and its limits.
        seats: How many connections it may accept.
        memory_bytes: What streams that wait to be taken from it may hold.
    """
    limits = settings.limits
    age = limits.max_connection_age_seconds
    pending = min(_PENDING_CONNECTIONS * limits.max_concurrent_streams, max(_LEAST_PENDING, memory_bytes // _PENDING_BYTES))
    # By default grpcio only pings clients that have streams, at most twice between messages, and waits a minute for the answer
    # however short the keep-alive timeout is.
    return [
        ("grpc.max_receive_message_length", min(limits.max_message_bytes, _MOST_BYTES)),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED),
        ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
        ("grpc.absolute_max_metadata_size", limits.max_header_bytes),
        ("grpc.max_allowed_incoming_connections", min(seats, _MOST_CONNECTIONS)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.handshake_seconds)),
        ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_idle_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.max_connection_idle_seconds)),
        ("grpc.max_connection_age_ms", _NEVER_MILLISECONDS if age is None else _milliseconds(age)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(limits.max_connection_age_grace_seconds)),
        ("grpc.server.max_pending_requests", min(pending, _MOST_PENDING)),
        ("grpc.server.max_pending_requests_hard_limit", min(2 * pending, _MOST_PENDING)),
        ("grpc.enable_channelz", 1),
        ("grpc.so_reuseport", int(settings.reuse_port)),
    ]


def _milliseconds(seconds: float) -> int:
    """In the 32 bits that grpcio takes: at least 1, at most the value that means never."""
    return min(max(round(seconds * 1000), 1), _NEVER_MILLISECONDS)
