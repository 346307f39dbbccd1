"""The options of `endpick serve`, and their conversion to the settings of the process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from endpick.cli.options import Count, Gates, Option, Port, PositiveSeconds, Seconds, Size, StateUrl, Switch, Workers

if TYPE_CHECKING:
    from endpick.host.planning.pool import PoolSettings
    from endpick.serve.decisions import RecordSettings
    from endpick.serve.logs import LogFormat
    from endpick.serve.settings import ServeSettings
    from endpick.transport.tls import TlsSettings

_DEFAULT_POOL = "endpick"
_DEBUG_VERBOSITY = 4

FeatureGates = Annotated[Gates, Option("Feature gates to switch over CONFIG, such as flowControl,other=false.")]


@dataclass(frozen=True)
class ConfigurationOptions:
    """Configuration."""

    config_file: Annotated[str | None, Option("Configuration file, as llm-d names it; same as CONFIG.")] = None
    config_text: Annotated[str | None, Option("The configuration itself instead of a file.")] = None
    feature_gates: FeatureGates = ()
    watch_config: Annotated[Switch, Option("Reload when CONFIG changes. SIGHUP always reloads.")] = False
    endpoints_file: Annotated[Path | None, Option("File with the endpoints, if CONFIG names no discovery. Watched.", "endpoints")] = None
    workers: Annotated[Workers, Option("Processes that serve on the same ports; auto: one for each core.", metavar="N|auto")] = 1
    state_url: Annotated[
        StateUrl,
        Option("Where pickers share what they learn: valkey://HOST:PORT/DB, valkeys://, unix://, local:///FOLDER or file:///FILE."),
    ] = ""
    locked: Annotated[Switch, Option("Refuse plugins that differ from the lock file.")] = False
    lock_file: Annotated[Path, Option("Lock file of `endpick lock`.")] = Path("endpick.lock.json")
    allow_experimental_plugins: Annotated[Switch, Option("Do not warn about experimental plugins.")] = False


@dataclass(frozen=True)
class PortOptions:
    """Ports and TLS."""

    host: Annotated[str, Option("Address to listen on. Default: every interface.")] = ""
    grpc_port: Annotated[Port, Option("Port of ext_proc; 0 for any free port.")] = 9002
    grpc_health_port: Annotated[Port, Option("Port of the gRPC health service.")] = 9003
    metrics_port: Annotated[Port, Option("Port of /metrics and /healthz.")] = 9090
    transport: Annotated[Literal["h2", "grpcio"], Option("HTTP/2 implementation.")] = "h2"
    reuse_port: Annotated[Switch, Option("Share the ext_proc port with other processes (SO_REUSEPORT).")] = False
    secure_serving: Annotated[Switch, Option("TLS on the ext_proc port.")] = True
    cert_path: Annotated[Path | None, Option("Folder with tls.crt and tls.key. Default: a self-signed certificate.")] = None
    client_ca_file: Annotated[Path | None, Option("Require gateway certificates signed by this CA.")] = None
    enable_cert_reload: Annotated[Switch, Option("Reload certificates when their files change.")] = True
    tls_min_version: Annotated[Literal["VersionTLS12", "VersionTLS13", "1.2", "1.3"], Option("Oldest TLS version.")] = "VersionTLS12"
    tls_cipher_suites: Annotated[tuple[str, ...], Option("TLS 1.2 cipher suites by IANA name, separated by commas.")] = ()
    metrics_cert_dir: Annotated[Path | None, Option("Folder with tls.crt and tls.key for the metrics port.")] = None
    metrics_client_ca_file: Annotated[Path | None, Option("Require client certificates on the metrics port signed by this CA.")] = None
    metrics_endpoint_auth: Annotated[Switch, Option("Ask Kubernetes for each client of /metrics, by its token.")] = False
    admin_token_file: Annotated[
        Path | None, Option("Bearer token for the admin API on the metrics port. Default: only loopback clients.")
    ] = None


@dataclass(frozen=True)
class PoolOptions:
    """Kubernetes."""

    pool_name: Annotated[str, Option("Name of the InferencePool; also a label of metrics.")] = ""
    pool_namespace: Annotated[str, Option("Namespace of the pool. Default: $NAMESPACE, else the Pod's.", envvar="NAMESPACE")] = ""
    pool_group: Annotated[str, Option("API group of the InferencePool. Default: inference.networking.k8s.io.")] = ""
    endpoint_selector: Annotated[str, Option("Label selector of the Pods, if there is no InferencePool.")] = ""
    endpoint_target_ports: Annotated[tuple[str, ...], Option("Ports of each selected Pod, separated by commas.")] = ()
    kubeconfig: Annotated[str, Option("Kubeconfig file. Default: $KUBECONFIG, else the service account.")] = ""
    ha_enable_leader_election: Annotated[Switch, Option("Elect one serving replica with a Lease; the others are not ready.")] = False
    ha_leader_label: Annotated[str, Option("Label key=value of the leader's Pod, for a Service; the other replicas are ready, too.")] = ""


@dataclass(frozen=True)
class EndpointOptions:
    """Endpoints."""

    disable_endpoint_subset_filter: Annotated[Switch, Option("Ignore the gateway's subset hint.")] = False
    emit_endpoint_scores: Annotated[Switch, Option("Send the score of each candidate to the gateway in dynamic metadata.")] = False
    max_endpoints: Annotated[Count, Option("Largest pool; further endpoints are left out.")] = 4096
    discovery_timeout: Annotated[Seconds, Option("How long to wait for the first endpoints.")] = 60
    refresh_metrics_interval: Annotated[PositiveSeconds, Option("Time between two scrapes of an endpoint.")] = 0.05
    idle_metrics_interval: Annotated[PositiveSeconds, Option("The same for an endpoint without requests.")] = 1
    metrics_staleness_threshold: Annotated[PositiveSeconds, Option("Pool gauges leave out older values.")] = 2
    envoy_endpoints: Annotated[Path | None, Option("Keep the endpoints in this file, for an EDS cluster of Envoy.")] = None
    unready_without_endpoints: Annotated[Switch, Option("Fail readiness while every endpoint is ejected.")] = False


@dataclass(frozen=True)
class LimitOptions:
    """Limits."""

    max_memory: Annotated[Size | None, Option("Memory limit. Default: the container's. Requests are shed near it.")] = None
    max_request_body: Annotated[Size, Option("Largest request body; a larger one gets 413.")] = 32 << 20
    grpc_max_recv_msg_size: Annotated[Size, Option("Largest ext_proc message.")] = 64 << 20
    grpc_max_header_size: Annotated[Size, Option("Largest header list of one stream.")] = 16 << 10
    grpc_max_connections: Annotated[Count, Option("Most connections to the ext_proc port.")] = 1024
    grpc_max_concurrent_streams: Annotated[int, click.IntRange(1, 2**31 - 1), Option("Most concurrent requests per connection.")] = 4096
    grpc_max_connection_age: Annotated[PositiveSeconds | None, Option("Age at which a connection is drained. Default: never.")] = None
    grpc_max_connection_age_grace: Annotated[PositiveSeconds, Option("Time for its streams to finish.")] = 60
    grpc_keepalive_time: Annotated[PositiveSeconds, Option("Silence after which a gateway gets a PING.")] = 60
    grpc_keepalive_timeout: Annotated[PositiveSeconds, Option("Time for the gateway to answer the PING.")] = 20


@dataclass(frozen=True)
class PluginOptions:
    """Plugins."""

    plugin_time_budget: Annotated[PositiveSeconds, Option("A plugin call that takes longer is late.")] = 0.05
    circuit_faults: Annotated[Count, Option("Faults that open a plugin's circuit (or 3 late calls).")] = 20
    circuit_cool_down: Annotated[PositiveSeconds, Option("How long a circuit stays open; doubles up to 5m.")] = 5
    stall_limit: Annotated[PositiveSeconds, Option("An event loop blocked this long fails health for the same time.")] = 10


@dataclass(frozen=True)
class ShutdownOptions:
    """Shutdown."""

    drain_timeout: Annotated[Seconds, Option("How long new requests are served after SIGTERM.")] = 30
    finish_timeout: Annotated[Seconds, Option("How long open streams may finish after that.")] = 30


@dataclass(frozen=True)
class MonitoringOptions:
    """Metrics and logs."""

    metrics_max_combinations: Annotated[
        Count,
        Option(
            "Combinations of model and fairness id with their own counters; later ones count as `other`. One in 5 has its own histograms."
        ),
    ] = 100
    legacy_metrics: Annotated[Switch, Option("Repeat llm-d's metrics under their names from before August 2026.")] = False
    enable_grpc_stream_metrics: Annotated[Switch, Option("Add llm-d's metrics of ext_proc streams.")] = False
    decision_sampling: Annotated[float, click.FloatRange(0, 1), Option("Share of decisions to record; errors always are.")] = 0.01
    decision_log: Annotated[Path | None, Option("File for recorded decisions, as rotated JSON lines.")] = None
    log_decisions: Annotated[Switch, Option("Log a line for each recorded decision.")] = False
    explain_header: Annotated[Switch, Option("Record each request with the header x-endpick-explain.")] = False
    tracing: Annotated[Switch, Option("Send traces if the environment names an OTLP endpoint.")] = True
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Option("Default: info.")] = None
    log_format: Annotated[Literal["auto", "text", "json"] | None, Option("Default: auto, which is text on a terminal, else JSON.")] = None
    verbosity: Annotated[int, Option("0 to 3 for info, 4 and more for debug.", "v")] = 2
    zap_log_level: Annotated[str | None, Option("debug, info, error, or a number as for --v; overrides --v.")] = None
    zap_encoder: Annotated[Literal["console", "json"] | None, Option("Format of the log; --log-format overrides it.")] = None
    zap_devel: Annotated[Switch, Option("false for JSON, unless --zap-encoder or --log-format is given.")] = True


@dataclass(frozen=True)
class ServeOptions(
    ConfigurationOptions, PortOptions, PoolOptions, EndpointOptions, LimitOptions, PluginOptions, ShutdownOptions, MonitoringOptions
):
    """The command line. `--help` has a section for each base, under its docstring."""

    config: str | None = None  # the argument

    @property
    def path(self) -> str | None:
        """The configuration file, or `-` for standard input; None without one."""
        return self.config or self.config_file


def log_level(options: MonitoringOptions) -> str:
    """Return the level from --log-level, else --zap-log-level, else --v. Raises UsageError."""
    if options.log_level is not None:
        return options.log_level
    named = (options.zap_log_level or "").lower()
    is_number = named.isascii() and named.isdigit()
    if is_number or not named:
        return "debug" if int(named or options.verbosity) >= _DEBUG_VERBOSITY else "info"
    if named not in ("debug", "info", "error", "panic"):
        raise click.UsageError(f"'{named}' is no --zap-log-level; write debug, info, error, or a number as for --v")
    return "error" if named == "panic" else named


def log_format(options: MonitoringOptions) -> LogFormat:
    """Return the format from --log-format, else --zap-encoder; JSON without --zap-devel."""
    if options.log_format is not None:
        return options.log_format
    if options.zap_encoder is not None:
        return "json" if options.zap_encoder == "json" else "text"
    return "auto" if options.zap_devel else "json"


def settings_of(options: ServeOptions) -> ServeSettings:
    """Return the settings of the process. Raises UsageError for contradictory or invalid options."""
    from endpick.extproc.session import SessionSettings
    from endpick.host.breaker import BreakerSettings
    from endpick.serve.settings import HEALTH_LIMITS, ServeSettings
    from endpick.serve.watchdog import WatchdogSettings
    from endpick.serve.watched_file import WatchedFile
    from endpick.transport.limits import Limits
    from endpick.transport.listener import ListenSettings

    if options.workers > 1:
        _check_workers(options)
    host, file = options.host, None if options.path in (None, "-") else Path(options.path)
    limits = Limits(
        max_message_bytes=options.grpc_max_recv_msg_size,
        max_connections=options.grpc_max_connections,
        max_header_bytes=options.grpc_max_header_size,
        max_concurrent_streams=options.grpc_max_concurrent_streams,
        max_connection_age_seconds=options.grpc_max_connection_age,
        max_connection_age_grace_seconds=options.grpc_max_connection_age_grace,
        keepalive_idle_seconds=options.grpc_keepalive_time,
        keepalive_timeout_seconds=options.grpc_keepalive_timeout,
    )
    settings = ServeSettings(
        ext_proc=ListenSettings(host, options.grpc_port, _tls(options), options.reuse_port, limits),
        health=ListenSettings(host, options.grpc_health_port, limits=HEALTH_LIMITS),
        metrics_host=host,
        metrics_port=options.metrics_port,
        metrics_tls=_metrics_tls(options),
        metrics_auth=options.metrics_endpoint_auth,
        admin_token_file=options.admin_token_file,
        metrics_staleness_seconds=options.metrics_staleness_threshold,
        unready_without_endpoints=options.unready_without_endpoints,
        transport=options.transport,
        pool_name=options.pool_name or _DEFAULT_POOL,
        emits_scores=options.emit_endpoint_scores,
        legacy_metrics=options.legacy_metrics,
        grpc_stream_metrics=options.enable_grpc_stream_metrics,
        records=_records(options),
        traces=options.tracing,
        max_metric_combinations=options.metrics_max_combinations,
        breaker=BreakerSettings(options.plugin_time_budget, options.circuit_faults, cool_down_seconds=options.circuit_cool_down),
        watchdog=WatchdogSettings(options.stall_limit / 10, options.stall_limit),
        watched_config=WatchedFile.now(file) if options.watch_config and file is not None else None,
        config_file=file,
        refresh_metrics_interval_seconds=options.refresh_metrics_interval,
        idle_metrics_interval_seconds=options.idle_metrics_interval,
        max_endpoints=options.max_endpoints,
        discovery_timeout_seconds=options.discovery_timeout,
        drain_timeout_seconds=options.drain_timeout,
        finish_timeout_seconds=options.finish_timeout,
        sessions=SessionSettings(options.max_request_body, not options.disable_endpoint_subset_filter),
    )
    return settings if options.max_memory is None else replace(settings, max_memory_bytes=options.max_memory)


def _check_workers(options: ServeOptions) -> None:
    if options.transport != "h2":
        raise click.UsageError("--workers needs --transport h2")
    if options.ha_enable_leader_election:
        raise click.UsageError("--workers and --ha-enable-leader-election exclude each other: with --state-url, all replicas can serve")
    if options.state_url.startswith("file:"):
        raise click.UsageError("a file keeps the state of one process; with --workers write --state-url local:///FOLDER")


def _records(options: ServeOptions) -> RecordSettings:
    from endpick.serve.decisions import RecordSettings

    everything = log_level(options) == "debug"
    ratio = 1.0 if everything else options.decision_sampling
    return RecordSettings(ratio, options.explain_header, options.decision_log, everything or options.log_decisions)


def _tls(options: PortOptions) -> TlsSettings | None:
    from endpick.transport.tls import TlsError, TlsSettings, cipher_list

    if not options.secure_serving:
        return None
    try:
        ciphers = cipher_list(options.tls_cipher_suites)
    except TlsError as problem:
        raise click.UsageError(str(problem)) from problem
    modern_only = options.tls_min_version.endswith("3")
    return TlsSettings(*_certificate(options.cert_path), options.client_ca_file, modern_only, ciphers, options.enable_cert_reload)


def _metrics_tls(options: PortOptions) -> TlsSettings | None:
    from endpick.transport.tls import TlsSettings

    folder, authority = options.metrics_cert_dir, options.metrics_client_ca_file
    if folder is None and authority is None:
        return None
    return TlsSettings(*_certificate(folder), authority, reload=options.enable_cert_reload, protocol="http/1.1")


def _certificate(folder: Path | None) -> tuple[Path | None, Path | None]:
    return (None, None) if folder is None else (folder / "tls.crt", folder / "tls.key")


def pool_of(options: PoolOptions) -> PoolSettings:
    """Return the settings from the flags about Kubernetes. Raises UsageError for contradictions."""
    from endpick.host.planning.pool import PoolSettings, PoolSettingsError, target_ports

    try:
        return PoolSettings(
            options.pool_name,
            options.pool_namespace,
            options.pool_group,
            options.endpoint_selector,
            target_ports(options.endpoint_target_ports),
            options.kubeconfig,
            options.ha_enable_leader_election,
            options.ha_leader_label,
        )
    except PoolSettingsError as problem:
        raise click.UsageError(str(problem)) from problem
