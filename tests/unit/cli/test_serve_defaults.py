"""What `endpick serve` says its limits are is what the transports take by default."""

from __future__ import annotations

from endpick.cli.serve import command
from endpick.transport.limits import Limits


def test_the_limits_of_connections_default_to_those_of_the_transports():
    shown, limits = command.make_context("serve", []).params, Limits()

    assert shown["grpc_max_recv_msg_size"] == limits.max_message_bytes
    assert shown["grpc_max_connections"] == limits.max_connections
    assert shown["grpc_max_concurrent_streams"] == limits.max_concurrent_streams
    assert shown["grpc_max_connection_age"] == limits.max_connection_age_seconds
    assert shown["grpc_max_connection_age_grace"] == limits.max_connection_age_grace_seconds
    assert shown["grpc_keepalive_time"] == limits.keepalive_idle_seconds
    assert shown["grpc_keepalive_timeout"] == limits.keepalive_timeout_seconds
