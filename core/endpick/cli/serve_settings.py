"""Converts the options of `endpick serve` into settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import click

if TYPE_CHECKING:
    from endpick.host.planning.pool import PoolSettings
    from endpick.serve.decisions import RecordSettings
    from endpick.serve.logs import LogFormat
    from endpick.serve.settings import ServeSettings
    from endpick.transport.server import TransportName
    from endpick.transport.tls import TlsSettings

DEFAULT_POOL = "endpick"
_DEBUG_VERBOSITY = 4


class PoolOptions(TypedDict):
    """The values of the options about Kubernetes."""

    pool_name: str | None
    pool_namespace: str
    pool_group: str
    endpoint_selector: str
    endpoint_target_ports: tuple[str, ...]
    kubeconfig: str
    ha_enable_leader_election: bool
    ha_leader_label: str


class ServeOptions(PoolOptions):
    """The values of all options."""

    config: str | None
    config_file: str | None
    config_text: str | None
    feature_gates: tuple[str, ...]
    endpoints_file: Path | None
    legacy_metrics: bool
    watch_config: bool
    workers: int
    state_url: str
    locked: bool
    lock_file: Path
    allow_experimental_plugins: bool
    host: str
    grpc_port: int
    grpc_health_port: int
    metrics_port: int
    transport: TransportName
    reuse_port: bool
    secure_serving: bool
    cert_path: Path | None
    client_ca_file: Path | None
    enable_cert_reload: bool
    tls_min_version: str
    tls_cipher_suites: tuple[str, ...]
    metrics_cert_dir: Path | None
    metrics_client_ca_file: Path | None
    metrics_endpoint_auth: bool
    admin_token_file: Path | None
    disable_endpoint_subset_filter: bool
    emit_endpoint_scores: bool
    max_endpoints: int
    discovery_timeout: float
    refresh_metrics_interval: float
    idle_metrics_interval: float
    metrics_staleness_threshold: float
    envoy_endpoints: Path | None
    unready_without_endpoints: bool
    drain_timeout: float
    finish_timeout: float
    grpc_max_recv_msg_size: int
    max_request_body: int
    max_memory: int | None
    grpc_max_connections: int
    grpc_max_header_size: int
    grpc_max_concurrent_streams: int
    grpc_max_connection_age: float | None
    grpc_max_connection_age_grace: float
    grpc_keepalive_time: float
    grpc_keepalive_timeout: float
    plugin_time_budget: float
    circuit_faults: int
    circuit_cool_down: float
    stall_limit: float
    decision_sampling: float
    decision_log: Path | None
    log_decisions: bool
    explain_header: bool
    tracing: bool
    metrics_max_combinations: int
    enable_grpc_stream_metrics: bool
    log_level: str | None
    log_format: LogFormat | None
    verbosity: int
    zap_log_level: str | None
    zap_encoder: Literal["console", "json"] | None
    zap_devel: bool


def log_level(options: ServeOptions) -> str:
    """The level from --log-level, else --zap-log-level, else --v. Raises UsageError."""
    if options["log_level"] is not None:
        return options["log_level"]
    named = (options["zap_log_level"] or "").lower()
    if named.isascii() and named.isdigit():
        return _level_of(int(named))
    if not named:
        return _level_of(options["verbosity"])
    if named not in ("debug", "info", "error", "panic"):
        raise click.UsageError(f"'{named}' is no --zap-log-level; write debug, info, error, or a number as for --v")
    return "error" if named == "panic" else named


def _level_of(verbosity: int) -> str:
    return "debug" if verbosity >= _DEBUG_VERBOSITY else "info"


def log_format(options: ServeOptions) -> LogFormat:
    """From --log-format, else --zap-encoder; JSON without --zap-devel."""
    encoded: dict[str, LogFormat] = {"json": "json", "console": "text"}
    if options["log_format"] is not None:
        return options["log_format"]
    if options["zap_encoder"] is not None:
        return encoded[options["zap_encoder"]]
    return "auto" if options["zap_devel"] else "json"


def settings_of(options: ServeOptions) -> ServeSettings:
    """Ports, intervals and limits. Raises UsageError for contradictory or invalid options."""
    from endpick.extproc.session import SessionSettings
    from endpick.host.breaker import BreakerSettings
    from endpick.serve.active_plan import WatchedFile
    from endpick.serve.settings import HEALTH_LIMITS, ServeSettings
    from endpick.serve.watchdog import WatchdogSettings
    from endpick.transport.limits import Limits
    from endpick.transport.listener import ListenSettings

    if options["workers"] > 1:
        _check_workers(options)
    host = options["host"]
    path = options["config"] or options["config_file"]
    limits = Limits(
        max_message_bytes=options["grpc_max_recv_msg_size"],
        max_connections=options["grpc_max_connections"],
        max_header_bytes=options["grpc_max_header_size"],
        max_concurrent_streams=options["grpc_max_concurrent_streams"],
        max_connection_age_seconds=options["grpc_max_connection_age"],
        max_connection_age_grace_seconds=options["grpc_max_connection_age_grace"],
        keepalive_idle_seconds=options["grpc_keepalive_time"],
        keepalive_timeout_seconds=options["grpc_keepalive_timeout"],
    )
    settings = ServeSettings(
        ext_proc=ListenSettings(host, options["grpc_port"], _tls(options), options["reuse_port"], limits),
        health=ListenSettings(host, options["grpc_health_port"], limits=HEALTH_LIMITS),
        metrics_host=host,
        metrics_port=options["metrics_port"],
        metrics_tls=_metrics_tls(options),
        metrics_auth=options["metrics_endpoint_auth"],
        admin_token_file=options["admin_token_file"],
        metrics_staleness_seconds=options["metrics_staleness_threshold"],
        unready_without_endpoints=options["unready_without_endpoints"],
        transport=options["transport"],
        pool_name=options["pool_name"] or DEFAULT_POOL,
        emits_scores=options["emit_endpoint_scores"],
        legacy_metrics=options["legacy_metrics"],
        grpc_stream_metrics=options["enable_grpc_stream_metrics"],
        records=_records(options),
        traces=options["tracing"],
        max_metric_combinations=options["metrics_max_combinations"],
        breaker=BreakerSettings(options["plugin_time_budget"], options["circuit_faults"], cool_down_seconds=options["circuit_cool_down"]),
        watchdog=WatchdogSettings(options["stall_limit"] / 10, options["stall_limit"]),
        watched_config=WatchedFile.now(Path(path)) if options["watch_config"] and path not in (None, "-") else None,
        config_file=None if path in (None, "-") else Path(path),
        refresh_metrics_interval_seconds=options["refresh_metrics_interval"],
        idle_metrics_interval_seconds=options["idle_metrics_interval"],
        max_endpoints=options["max_endpoints"],
        discovery_timeout_seconds=options["discovery_timeout"],
        drain_timeout_seconds=options["drain_timeout"],
        finish_timeout_seconds=options["finish_timeout"],
        sessions=SessionSettings(
            max_request_body_bytes=options["max_request_body"], respects_subset=not options["disable_endpoint_subset_filter"]
        ),
    )
    memory = options["max_memory"]
    return settings if memory is None else replace(settings, max_memory_bytes=memory)


def _check_workers(options: ServeOptions) -> None:
    if options["transport"] != "h2":
        raise click.UsageError("--workers needs --transport h2")
    if options["ha_enable_leader_election"]:
        raise click.UsageError("--workers and --ha-enable-leader-election exclude each other: with --state-url, all replicas can serve")
    if options["state_url"].startswith("file:"):
        raise click.UsageError("a file keeps the state of one process; with --workers write --state-url local:///FOLDER")


def _records(options: ServeOptions) -> RecordSettings:
    from endpick.serve.decisions import RecordSettings

    everything = log_level(options) == "debug"
    ratio = 1.0 if everything else options["decision_sampling"]
    return RecordSettings(ratio, options["explain_header"], options["decision_log"], everything or options["log_decisions"])


def _tls(options: ServeOptions) -> TlsSettings | None:
    from endpick.transport.tls import TlsError, cipher_list

    if not options["secure_serving"]:
        return None
    try:
        ciphers = cipher_list(options["tls_cipher_suites"])
    except TlsError as problem:
        raise click.UsageError(str(problem)) from problem
    return replace(
        _certificate(options["cert_path"], options["client_ca_file"]),
        modern_only=options["tls_min_version"].endswith("3"),
        ciphers=ciphers,
        reload=options["enable_cert_reload"],
    )


def _metrics_tls(options: ServeOptions) -> TlsSettings | None:
    folder, authority = options["metrics_cert_dir"], options["metrics_client_ca_file"]
    if folder is None and authority is None:
        return None
    return replace(_certificate(folder, authority), reload=options["enable_cert_reload"], protocol="http/1.1")


def _certificate(folder: Path | None, client_ca_file: Path | None) -> TlsSettings:
    from endpick.transport.tls import TlsSettings

    if folder is None:
        return TlsSettings(client_ca_file=client_ca_file)
    return TlsSettings(folder / "tls.crt", folder / "tls.key", client_ca_file)


def pool_of(options: PoolOptions) -> PoolSettings:
    """The flags about Kubernetes. Raises UsageError for contradictions."""
    from endpick.host.planning.pool import PoolSettings, PoolSettingsError, target_ports

    try:
        return PoolSettings(
            options["pool_name"] or "",
            options["pool_namespace"],
            options["pool_group"],
            options["endpoint_selector"],
            target_ports(options["endpoint_target_ports"]),
            options["kubeconfig"],
            options["ha_enable_leader_election"],
            options["ha_leader_label"],
        )
    except PoolSettingsError as problem:
        raise click.UsageError(str(problem)) from problem
