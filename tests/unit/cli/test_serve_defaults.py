"""What `endpick serve` says its limits are is what the transports take by default."""

from __future__ import annotations

from endpick.cli.serve import command
from endpick.extproc.session import SessionSettings
from endpick.serve.admin_limits import AdminLimits
from endpick.serve.process import HEALTH_LIMITS, ServeSettings
from endpick.transport.limits import Limits


def test_the_limits_of_connections_default_to_those_of_the_transports():
    shown, limits = command.make_context("serve", []).params, Limits()

    assert shown["grpc_max_recv_msg_size"] == limits.max_message_bytes
    assert shown["grpc_max_connections"] == limits.max_connections
    assert shown["grpc_handshake_timeout"] == limits.handshake_seconds
    assert shown["grpc_max_envelope_size"] == limits.max_envelope_bytes
    assert shown["grpc_max_concurrent_streams"] == limits.max_concurrent_streams
    assert shown["grpc_max_connection_age"] == limits.max_connection_age_seconds
    assert shown["grpc_max_connection_age_grace"] == limits.max_connection_age_grace_seconds
    assert shown["grpc_keepalive_time"] == limits.keepalive_idle_seconds
    assert shown["grpc_keepalive_timeout"] == limits.keepalive_timeout_seconds
    assert shown["grpc_max_header_size"] == limits.max_header_bytes
    assert shown["max_held"] == SessionSettings().max_held_bytes
    assert shown["grpc_max_early_messages"] == SessionSettings().max_early_messages


def test_the_limits_of_the_other_ports_default_to_their_own():
    shown, limits = command.make_context("serve", []).params, AdminLimits()

    assert shown["grpc_health_max_connections"] == HEALTH_LIMITS.max_connections
    assert shown["metrics_max_connections"] == limits.max_connections
    assert shown["metrics_header_timeout"] == limits.header_seconds
    assert shown["metrics_idle_timeout"] == limits.idle_seconds
    assert shown["metrics_max_request"] == limits.max_request_bytes
    assert shown["metrics_max_held"] == limits.max_held_bytes
    assert shown["metrics_max_samples"] == ServeSettings().max_metric_samples


def test_the_longest_name_defaults_to_that_of_the_process():
    assert command.make_context("serve", []).params["max_name_length"] == ServeSettings().max_name_characters


def test_the_times_of_the_end_default_to_those_of_the_process():
    shown, settings = command.make_context("serve", []).params, ServeSettings()

    assert shown["drain_timeout"] == settings.drain_timeout_seconds
    assert shown["finish_timeout"] == settings.finish_timeout_seconds
