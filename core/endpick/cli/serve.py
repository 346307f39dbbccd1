"""`endpick serve`: the main job."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from endpick.cli.quantities import DURATION, POSITIVE_DURATION, QUANTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.planning.plan import PlanOutcome
    from endpick.planning.pool import PoolSettings
    from endpick.serve.process import ServeSettings
    from endpick.transport.server import TransportName
    from endpick.transport.tls import TlsSettings


_PORT = click.IntRange(0, 65535)
_COUNT = click.IntRange(1, 2**31 - 1)
"""What both transports can count to."""


@click.command("serve")
@click.argument("config", required=False)
@click.option("--config-file", help="The configuration, as llm-d spells it; the same as CONFIG.")
@click.option("--config-text", help="The configuration itself instead of a file.")
@click.option("--host", default="", help="Address to listen on; default every interface.")
@click.option("--grpc-port", type=_PORT, default=9002, show_default=True, help="Port of ext_proc; 0 takes any free one.")
@click.option("--grpc-health-port", type=_PORT, default=9003, show_default=True, help="Port of the gRPC health service.")
@click.option("--metrics-port", type=_PORT, default=9090, show_default=True, help="Port of /metrics and /healthz.")
@click.option("--transport", type=click.Choice(["h2", "grpcio"]), default="h2", show_default=True, help="Who speaks HTTP/2.")
@click.option(
    "--secure-serving",
    type=bool,
    is_flag=False,
    flag_value="true",
    default=True,
    show_default=True,
    help="TLS on the ext_proc port; --secure-serving=false for plain text.",
)
@click.option("--cert-path", type=click.Path(path_type=Path), help="Folder with tls.crt and tls.key; without it a self-signed pair.")
@click.option("--client-ca-file", type=click.Path(path_type=Path), help="Ask gateways for a certificate signed by this authority.")
@click.option(
    "--refresh-metrics-interval", type=POSITIVE_DURATION, default="50ms", show_default=True, help="How often endpoints are scraped."
)
@click.option(
    "--idle-metrics-interval",
    type=POSITIVE_DURATION,
    default="1s",
    show_default=True,
    help="Longest time between two scrapes of an endpoint with nothing to do; shorter where a plugin wants fresher data.",
)
@click.option(
    "--drain-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long new requests are still served after SIGTERM, while health says that endpick is going. It ends as soon as no gateway is "
    "connected, and at a second signal.",
)
@click.option(
    "--finish-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long streams may finish after --drain-timeout; another signal, or 30 s more, end the process at once.",
)
@click.option("--discovery-timeout", type=DURATION, default="60s", show_default=True, help="How long to wait for the first endpoints.")
@click.option("--grpc-max-recv-msg-size", type=QUANTITY, default="64Mi", show_default=True, help="Largest ext_proc message.")
@click.option(
    "--grpc-max-envelope-size",
    type=QUANTITY,
    default="256Ki",
    show_default=True,
    help="What one ext_proc message may hold beside its body: headers, attributes, metadata.",
)
@click.option("--max-request-body", type=QUANTITY, default="32Mi", show_default=True, help="Largest request body; more is refused.")
@click.option(
    "--large-body", type=QUANTITY, default="1Mi", show_default=True, help="A request body of more bytes is parsed by a process of its own."
)
@click.option(
    "--large-body-timeout", type=POSITIVE_DURATION, default="10s", show_default=True, help="How long parsing a large body may take."
)
@click.option(
    "--large-body-memory",
    type=QUANTITY,
    default="1Gi",
    show_default=True,
    help="How much memory parsing a large body may take beside the body.",
)
@click.option(
    "--large-body-queue",
    type=QUANTITY,
    default="256Mi",
    show_default=True,
    help="How many bytes of large bodies may wait, 256 of them at most; requests beyond are refused.",
)
@click.option(
    "--max-memory",
    type=QUANTITY,
    help="What the process may use, by default the limit of its container, or the machine's memory; near it, requests are refused.",
)
@click.option("--grpc-max-connections", type=_COUNT, default=1024, show_default=True, help="ext_proc connections; more are closed.")
@click.option(
    "--max-connections-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="Share of --grpc-max-connections that one address may have; only with --transport h2.",
)
@click.option(
    "--grpc-handshake-timeout",
    type=POSITIVE_DURATION,
    default="10s",
    show_default=True,
    help="How long a TLS handshake may take, and after it as long again the client's first SETTINGS.",
)
@click.option("--grpc-health-max-connections", type=_COUNT, default=64, show_default=True, help="Connections to --grpc-health-port.")
@click.option("--metrics-max-connections", type=_COUNT, default=32, show_default=True, help="Connections to --metrics-port.")
@click.option(
    "--metrics-header-timeout",
    type=POSITIVE_DURATION,
    default="10s",
    show_default=True,
    help="How long a request to --metrics-port may take to arrive.",
)
@click.option(
    "--metrics-idle-timeout",
    type=POSITIVE_DURATION,
    default="75s",
    show_default=True,
    help="When a connection to --metrics-port that asks nothing is closed.",
)
@click.option("--metrics-max-request", type=QUANTITY, default="16Ki", show_default=True, help="Largest request to --metrics-port.")
@click.option(
    "--reserved-descriptors",
    type=click.IntRange(0),
    default=128,
    show_default=True,
    help="File descriptors that ext_proc connections leave to health, metrics, logs and plugins; at most half of all.",
)
@click.option("--grpc-max-concurrent-streams", type=_COUNT, default=4096, show_default=True, help="Requests under way per connection.")
@click.option("--grpc-max-connection-age", type=POSITIVE_DURATION, help="When a gateway is asked to connect anew; default never.")
@click.option(
    "--grpc-max-connection-age-grace",
    type=POSITIVE_DURATION,
    default="60s",
    show_default=True,
    help="How long streams of a connection that has its age may finish.",
)
@click.option(
    "--grpc-keepalive-time", type=POSITIVE_DURATION, default="60s", show_default=True, help="Silence after which a gateway gets a PING."
)
@click.option(
    "--grpc-keepalive-timeout", type=POSITIVE_DURATION, default="20s", show_default=True, help="How long it may take to answer the PING."
)
@click.option("--reuse-port", is_flag=True, help="Share the ext_proc port with other processes that say so, too (SO_REUSEPORT).")
@click.option("--locked", is_flag=True, help="Refuse every plugin that differs from the lock file.")
@click.option("--lock-file", type=click.Path(path_type=Path), default=Path("endpick.lock.json"), help="See `endpick lock`.")
@click.option(
    "--decision-sampling",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Ratio of decisions shown to hook objects that watch them.",
)
@click.option(
    "--metrics-max-combinations",
    type=click.IntRange(1),
    default=250,
    show_default=True,
    help="Combinations of model, target model, fairness id and priority that metrics tell apart; later ones count as `other`.",
)
@click.option(
    "--plugin-time-budget",
    type=POSITIVE_DURATION,
    default="50ms",
    show_default=True,
    help="A call of a plugin that holds the event loop for longer is late.",
)
@click.option(
    "--circuit-faults",
    type=_COUNT,
    default=20,
    show_default=True,
    help="So many faults, or 3 late calls, leave a plugin out, if they are half of its calls, or of the time.",
)
@click.option(
    "--circuit-cool-down",
    type=POSITIVE_DURATION,
    default="5s",
    show_default=True,
    help="How long a plugin is left out; twice as long, up to 5m, each time that it fails right after.",
)
@click.option(
    "--stall-limit",
    type=POSITIVE_DURATION,
    default="10s",
    show_default=True,
    help="An event loop that stands still for so long makes health fail for as long; a tenth of it is logged, with the stack.",
)
@click.option("--watch-config", is_flag=True, help="Reload when CONFIG changes; SIGHUP reloads in any case.")
@click.option(
    "--pool-name",
    help="Label of the pool's gauges, `endpick` if not given; and the InferencePool to serve, if CONFIG names no discovery.",
)
@click.option("--kubeconfig", default="", help="Where the Kubernetes API is; default $KUBECONFIG, else the service account of the Pod.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.option(
    "--log-format", type=click.Choice(["auto", "text", "json"]), default="auto", show_default=True, help="auto: text on a terminal."
)
def command(
    config: str | None,
    config_file: str | None,
    config_text: str | None,
    host: str,
    grpc_port: int,
    grpc_health_port: int,
    metrics_port: int,
    transport: TransportName,
    secure_serving: bool,
    cert_path: Path | None,
    client_ca_file: Path | None,
    refresh_metrics_interval: float,
    idle_metrics_interval: float,
    drain_timeout: float,
    finish_timeout: float,
    discovery_timeout: float,
    grpc_max_recv_msg_size: int,
    grpc_max_envelope_size: int,
    max_request_body: int,
    large_body: int,
    large_body_timeout: float,
    large_body_memory: int,
    large_body_queue: int,
    max_memory: int | None,
    grpc_max_connections: int,
    max_connections_share: float,
    grpc_handshake_timeout: float,
    grpc_health_max_connections: int,
    metrics_max_connections: int,
    metrics_header_timeout: float,
    metrics_idle_timeout: float,
    metrics_max_request: int,
    reserved_descriptors: int,
    grpc_max_concurrent_streams: int,
    grpc_max_connection_age: float | None,
    grpc_max_connection_age_grace: float,
    grpc_keepalive_time: float,
    grpc_keepalive_timeout: float,
    reuse_port: bool,
    locked: bool,
    lock_file: Path,
    decision_sampling: float,
    metrics_max_combinations: int,
    plugin_time_budget: float,
    circuit_faults: int,
    circuit_cool_down: float,
    stall_limit: float,
    watch_config: bool,
    pool_name: str | None,
    kubeconfig: str,
    log_level: str,
    log_format: Literal["auto", "text", "json"],
) -> None:
    """Serve a gateway: pick an endpoint for every request.

    CONFIG is an EndpointPickerConfig file. Ends with exit code 3 when the configuration is wrong, 4 when a plugin is missing or
    broken, 5 when a port, a plugin's start or the discovery does not work.
    """
    sources = [source for source in (config, config_file, config_text) if source is not None]
    if len(sources) > 1:
        raise click.UsageError("give the configuration once: CONFIG, --config-file or --config-text")

    # What start-up makes stays, and the collector would look at all of it again and again. It works again once requests are answered.
    gc.disable()
    from endpick.observability.logs import configure_logging
    from endpick.planning.pool import PoolSettings
    from endpick.plugins.breaker import BreakerSettings
    from endpick.serve.active_plan import WatchedFile
    from endpick.serve.admin_http import AdminLimits
    from endpick.serve.bodies.reader import LargeBodySettings
    from endpick.serve.process import HEALTH_LIMITS, ServeSettings
    from endpick.serve.watchdog import WatchdogSettings
    from endpick.transport.limits import Limits
    from endpick.transport.server import ListenSettings

    configure_logging(log_level, log_format)
    path = config or config_file
    limits = Limits(
        max_message_bytes=grpc_max_recv_msg_size,
        max_envelope_bytes=grpc_max_envelope_size,
        max_connections=grpc_max_connections,
        max_peer_share=max_connections_share,
        handshake_seconds=grpc_handshake_timeout,
        reserved_descriptors=reserved_descriptors,
        max_concurrent_streams=grpc_max_concurrent_streams,
        max_connection_age_seconds=grpc_max_connection_age,
        max_connection_age_grace_seconds=grpc_max_connection_age_grace,
        keepalive_idle_seconds=grpc_keepalive_time,
        keepalive_timeout_seconds=grpc_keepalive_timeout,
    )
    tls = _tls(cert_path, client_ca_file) if secure_serving else None
    settings = ServeSettings(
        ext_proc=ListenSettings(host, grpc_port, tls, reuse_port, limits),
        health=ListenSettings(host, grpc_health_port, limits=replace(HEALTH_LIMITS, max_connections=grpc_health_max_connections)),
        metrics_host=host,
        metrics_port=metrics_port,
        metrics_limits=AdminLimits(
            max_connections=metrics_max_connections,
            header_seconds=metrics_header_timeout,
            idle_seconds=metrics_idle_timeout,
            max_request_bytes=metrics_max_request,
        ),
        transport=transport,
        pool_name=pool_name or "endpick",
        decision_sampling_ratio=decision_sampling,
        max_metric_combinations=metrics_max_combinations,
        breaker=BreakerSettings(plugin_time_budget, circuit_faults, cool_down_seconds=circuit_cool_down),
        watchdog=WatchdogSettings(stall_limit / 10, stall_limit),
        watched_config=WatchedFile.as_it_is(Path(path)) if watch_config and path not in (None, "-") else None,
        refresh_metrics_interval_seconds=refresh_metrics_interval,
        idle_metrics_interval_seconds=idle_metrics_interval,
        discovery_timeout_seconds=discovery_timeout,
        drain_timeout_seconds=drain_timeout,
        finish_timeout_seconds=finish_timeout,
        max_request_body_bytes=max_request_body,
        large_bodies=LargeBodySettings(
            large_body, large_body_timeout, large_body_memory, large_body_queue, lock_file=lock_file if locked else None
        ),
    )
    if max_memory is not None:
        settings = replace(settings, max_memory_bytes=max_memory)
    pool = PoolSettings(name=pool_name or "", kubeconfig=kubeconfig)
    sys.exit(_run(lambda: _loaded(path, config_text), lock_file if locked else None, settings, pool))


def _tls(cert_path: Path | None, client_ca_file: Path | None) -> TlsSettings:
    from endpick.transport.tls import TlsSettings

    if cert_path is None:
        return TlsSettings(client_ca_file=client_ca_file)
    return TlsSettings(cert_path / "tls.crt", cert_path / "tls.key", client_ca_file)


def _loaded(path: str | None, text: str | None) -> LoadedConfig:
    from endpick.cli.console import read
    from endpick.config import load_config

    return load_config(text=text, name="--config-text") if text is not None else read(path)


def _outcome(loaded: LoadedConfig, lock_file: Path | None, pool: PoolSettings) -> PlanOutcome:
    """The lock file is read each time, so that a reload sees a new one."""
    from endpick.diagnostics import Diagnostic
    from endpick.planning.plan import PlanOutcome
    from endpick.planning.planner import make_plan
    from endpick.plugins.discovery import discover
    from endpick.plugins.lock import load_lock

    lock = None if lock_file is None else load_lock(lock_file)
    return PlanOutcome(None, (lock,)) if isinstance(lock, Diagnostic) else make_plan(loaded, discover(), lock=lock, pool=pool)


def _run(load: Callable[[], LoadedConfig], lock_file: Path | None, settings: ServeSettings, pool: PoolSettings) -> int:
    from endpick.diagnostics import Code, Diagnostic, ExitCode
    from endpick.serve.deployment import StartRefused
    from endpick.serve.main import run

    loaded = load()
    outcome = _outcome(loaded, lock_file, pool)
    if outcome.plan is None:
        return _refuse(outcome.diagnostics, loaded)
    _print(outcome.diagnostics, loaded)
    try:
        run(outcome.plan, settings, lambda: _outcome(load(), lock_file, pool))
    except StartRefused as refusal:
        return _refuse(refusal.diagnostics, loaded)
    except ExceptionGroup as group:
        _print(
            [Diagnostic(Code.E0704, "; ".join(each.__notes__) + f": {type(each).__name__}: {each}") for each in group.exceptions], loaded
        )
        return ExitCode.FAILED
    return ExitCode.OK


def _refuse(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> int:
    from endpick.diagnostics import exit_code_of

    _print(diagnostics, loaded)
    return exit_code_of(diagnostics)


def _print(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> None:
    from endpick.cli.console import print_diagnostics

    print_diagnostics(diagnostics, [loaded])
