"""`endpick serve`: answers a gateway."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from typing_extensions import Unpack

from endpick.cli.llm_d_flags import (
    DURATION,
    FEATURE_GATES,
    FLAGS,
    GIVEN,
    GO_BOOLEAN,
    POSITIVE_DURATION,
    QUANTITY,
    Effect,
    GoCommand,
    unused_options,
    without_effect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from endpick.cli.serve_settings import ServeOptions
    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.serve.eds import EdsFile
    from endpick.serve.settings import ServeSettings


_PORT = click.IntRange(0, 65535)
_MAX_WORKERS = 128
_STORES = ("valkey", "valkeys", "redis", "rediss", "unix", "local", "file")


class _Workers(click.ParamType[int]):
    name = "workers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number, or `auto`."""
        if value == "auto":
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        number = int(str(value)) if str(value).isdecimal() else 0
        if not 1 <= number <= _MAX_WORKERS:
            self.fail(f"'{value}' is no number of workers: write auto, or 1 to {_MAX_WORKERS}", param, ctx)
        return number


class _StateURL(click.ParamType[str]):
    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Of a store that exists, and without a password, which would be seen in the list of processes."""
        url = str(value)
        parts = urlsplit(url)
        if url and parts.scheme not in _STORES:
            self.fail(f"'{url}' does not begin with {', '.join(f'{scheme}://' for scheme in _STORES)}", param, ctx)
        if parts.password:
            self.fail("keep the password out of it: it comes from the variable VALKEY_PASSWORD", param, ctx)
        return url


WORKERS = _Workers()
_COUNT = click.IntRange(1)
_FILE = click.Path(path_type=Path)
_RATIO = click.FloatRange(0, 1)


def _option(name: str, help_text: str, *, default: Any = None, **settings: Any) -> click.Option:  # noqa: ANN401 - as click has it
    names = [f"--{name}", *settings.pop("names", ())]
    return click.Option(names, help=help_text, default=default, show_default=default not in (None, "", False, ()), **settings)


def _boolean(name: str, help_text: str, *, default: bool = False) -> click.Option:
    return _option(name, help_text, default=default, type=GO_BOOLEAN)


FEATURE_GATES_OPTION = _option(
    "feature-gates", "Feature gates to switch over CONFIG, such as flowControl,other=false.", default=(), type=FEATURE_GATES
)
GROUPS: dict[str, tuple[click.Option, ...]] = {
    "Configuration": (
        _option("config-file", "Configuration file, as llm-d names it; same as CONFIG."),
        _option("config-text", "The configuration itself instead of a file."),
        FEATURE_GATES_OPTION,
        _boolean("watch-config", "Reload when CONFIG changes. SIGHUP always reloads."),
        _option("endpoints", "File with the endpoints, if CONFIG names no discovery. Watched.", names=("endpoints_file",), type=_FILE),
        _option("workers", "Processes that serve on the same ports; auto: one for each core.", default="1", metavar="N|auto", type=WORKERS),
        _option(
            "state-url",
            "Where pickers share what they learn: valkey://HOST:PORT/DB, valkeys://, unix://, local:///FOLDER or file:///FILE.",
            default="",
            type=_StateURL(),
        ),
        _boolean("locked", "Refuse plugins that differ from the lock file."),
        _option("lock-file", "Lock file of `endpick lock`.", default=Path("endpick.lock.json"), type=_FILE),
        _boolean("allow-experimental-plugins", "Do not warn about experimental plugins."),
    ),
    "Ports and TLS": (
        _option("host", "Address to listen on. Default: every interface.", default=""),
        _option("grpc-port", "Port of ext_proc; 0 for any free port.", default=9002, type=_PORT),
        _option("grpc-health-port", "Port of the gRPC health service.", default=9003, type=_PORT),
        _option("metrics-port", "Port of /metrics and /healthz.", default=9090, type=_PORT),
        _option("transport", "HTTP/2 implementation.", default="h2", type=click.Choice(["h2", "grpcio"])),
        _boolean("reuse-port", "Share the ext_proc port with other processes (SO_REUSEPORT)."),
        _boolean("secure-serving", "TLS on the ext_proc port.", default=True),
        _option("cert-path", "Folder with tls.crt and tls.key. Default: a self-signed certificate.", type=_FILE),
        _option("client-ca-file", "Require gateway certificates signed by this CA.", type=_FILE),
        _boolean("enable-cert-reload", "Reload certificates when their files change.", default=True),
        _option(
            "tls-min-version",
            "Oldest TLS version.",
            default="VersionTLS12",
            type=click.Choice(["VersionTLS12", "VersionTLS13", "1.2", "1.3"]),
        ),
        _option("tls-cipher-suites", "TLS 1.2 cipher suites by IANA name, separated by commas.", multiple=True),
        _option("metrics-cert-dir", "Folder with tls.crt and tls.key for the metrics port.", type=_FILE),
        _option("metrics-client-ca-file", "Require client certificates on the metrics port signed by this CA.", type=_FILE),
        _boolean("metrics-endpoint-auth", "Ask Kubernetes for each client of /metrics, by its token."),
        _option("admin-token-file", "Bearer token for the admin API on the metrics port. Default: only loopback clients.", type=_FILE),
    ),
    "Kubernetes": (
        _option("pool-name", "Name of the InferencePool; also a label of metrics."),
        _option("pool-namespace", "Namespace of the pool. Default: $NAMESPACE, else the Pod's.", default="", envvar="NAMESPACE"),
        _option("pool-group", "API group of the InferencePool. Default: inference.networking.k8s.io.", default=""),
        _option("endpoint-selector", "Label selector of the Pods, if there is no InferencePool.", default=""),
        _option("endpoint-target-ports", "Ports of each selected Pod, separated by commas.", multiple=True),
        _option("kubeconfig", "Kubeconfig file. Default: $KUBECONFIG, else the service account.", default=""),
        _boolean("ha-enable-leader-election", "Elect one serving replica with a Lease; the others are not ready."),
        _option("ha-leader-label", "Label key=value of the leader's Pod, for a Service; the other replicas are ready, too.", default=""),
    ),
    "Endpoints": (
        _boolean("disable-endpoint-subset-filter", "Ignore the gateway's subset hint."),
        _boolean("emit-endpoint-scores", "Send the score of each candidate to the gateway in dynamic metadata."),
        _option("max-endpoints", "Largest pool; further endpoints are left out.", default=4096, type=_COUNT),
        _option("discovery-timeout", "How long to wait for the first endpoints.", default="60s", type=DURATION),
        _option("refresh-metrics-interval", "Time between two scrapes of an endpoint.", default="50ms", type=POSITIVE_DURATION),
        _option("idle-metrics-interval", "The same for an endpoint without requests.", default="1s", type=POSITIVE_DURATION),
        _option("metrics-staleness-threshold", "Pool gauges leave out older values.", default="2s", type=POSITIVE_DURATION),
        _option("envoy-endpoints", "Keep the endpoints in this file, for an EDS cluster of Envoy.", type=_FILE),
        _boolean("unready-without-endpoints", "Fail readiness while every endpoint is ejected."),
    ),
    "Limits": (
        _option("max-memory", "Memory limit. Default: the container's. Requests are shed near it.", type=QUANTITY),
        _option("max-request-body", "Largest request body; a larger one gets 413.", default="32Mi", type=QUANTITY),
        _option("grpc-max-recv-msg-size", "Largest ext_proc message.", default="64Mi", type=QUANTITY),
        _option("grpc-max-header-size", "Largest header list of one stream.", default="16Ki", type=QUANTITY),
        _option("grpc-max-connections", "Most connections to the ext_proc port.", default=1024, type=_COUNT),
        _option(
            "grpc-max-concurrent-streams",
            "Most concurrent requests per connection.",
            default=4096,
            type=click.IntRange(1, 2**31 - 1),
        ),
        _option("grpc-max-connection-age", "Age at which a connection is drained. Default: never.", type=POSITIVE_DURATION),
        _option("grpc-max-connection-age-grace", "Time for its streams to finish.", default="60s", type=POSITIVE_DURATION),
        _option("grpc-keepalive-time", "Silence after which a gateway gets a PING.", default="60s", type=POSITIVE_DURATION),
        _option("grpc-keepalive-timeout", "Time for the gateway to answer the PING.", default="20s", type=POSITIVE_DURATION),
    ),
    "Plugins": (
        _option("plugin-time-budget", "A plugin call that takes longer is late.", default="50ms", type=POSITIVE_DURATION),
        _option("circuit-faults", "Faults that open a plugin's circuit (or 3 late calls).", default=20, type=_COUNT),
        _option("circuit-cool-down", "How long a circuit stays open; doubles up to 5m.", default="5s", type=POSITIVE_DURATION),
        _option("stall-limit", "An event loop blocked this long fails health for the same time.", default="10s", type=POSITIVE_DURATION),
    ),
    "Shutdown": (
        _option("drain-timeout", "How long new requests are served after SIGTERM.", default="30s", type=DURATION),
        _option("finish-timeout", "How long open streams may finish after that.", default="30s", type=DURATION),
    ),
    "Metrics and logs": (
        _option(
            "metrics-max-combinations",
            "Combinations of model and fairness id with their own counters; later ones count as `other`. One in 5 has its own histograms.",
            default=100,
            type=_COUNT,
        ),
        _boolean("legacy-metrics", "Repeat llm-d's metrics under their names from before August 2026."),
        _boolean("enable-grpc-stream-metrics", "Add llm-d's metrics of ext_proc streams."),
        _option("decision-sampling", "Share of decisions to record; errors always are.", default=0.01, type=_RATIO),
        _option("decision-log", "File for recorded decisions, as rotated JSON lines.", type=_FILE),
        _boolean("log-decisions", "Log a line for each recorded decision."),
        _boolean("explain-header", "Record each request with the header x-endpick-explain."),
        _boolean("tracing", "Send traces if the environment names an OTLP endpoint.", default=True),
        _option("log-level", "Default: info.", type=click.Choice(["debug", "info", "warning", "error"])),
        _option("log-format", "Default: auto, which is text on a terminal, else JSON.", type=click.Choice(["auto", "text", "json"])),
        _option("v", "0 to 3 for info, 4 and more for debug.", default=2, names=("verbosity",), type=int),
        _option("zap-log-level", "debug, info, error, or a number as for --v; overrides --v."),
        _option("zap-encoder", "Format of the log; --log-format overrides it.", type=click.Choice(["console", "json"])),
        _boolean("zap-devel", "false for JSON, unless --zap-encoder or --log-format is given.", default=True),
    ),
}

PARAMETERS: list[click.Parameter] = [option for group in GROUPS.values() for option in group] + unused_options()


def write_groups(context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of `--help` by group."""
    for heading, options in GROUPS.items():
        records = [record for option in options if (record := option.get_help_record(context)) is not None]
        with formatter.section(heading):
            formatter.write_dl(records)


_log = logging.getLogger("endpick.serve")


_UNUSED = ", ".join(f"--{flag.name}" for flag in FLAGS if flag.effect is Effect.NONE)


class ServeCommand(GoCommand):
    """Accepts llm-d's command lines; groups the options in `--help`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group."""
        write_groups(ctx, formatter)


@click.command(
    "serve",
    cls=ServeCommand,
    params=PARAMETERS,
    epilog=f"These flags of llm-d are accepted and have no effect, see `endpick migrate`: {_UNUSED}.",
)
@click.argument("config", required=False)
def command(**options: Unpack[ServeOptions]) -> None:
    """Serve a gateway: pick an endpoint for every request.

    CONFIG is an EndpointPickerConfig file. Exit code 3: the configuration is wrong. 4: a plugin is missing or broken. 5: a port, a
    plugin's start or the discovery failed.
    """
    path, text = options["config"] or options["config_file"], options["config_text"]
    if sum(source is not None for source in (options["config"], options["config_file"], text)) > 1:
        raise click.UsageError("give the configuration once: CONFIG, --config-file or --config-text")

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpcio logs to standard error by itself
    gc.disable()  # objects made at start stay; `run` enables it again
    from endpick.cli.serve_settings import log_format, log_level, settings_of
    from endpick.serve.logs import configure_logging
    from endpick.serve.workers.worker import worker_role

    settings, planning = settings_of(options), _Planning(options)
    role = worker_role()
    stop_logging = configure_logging(log_level(options), log_format(options), worker=None if role is None else role.number)
    try:
        sys.exit(_run(_Document(path, text, options["feature_gates"]), planning, settings, options))
    finally:
        stop_logging()


@dataclass(frozen=True, slots=True)
class _Document:
    path: str | None
    text: str | None
    gates: tuple[str, ...]

    def read(self) -> LoadedConfig:
        from endpick.cli.console import read
        from endpick.config import load_config

        if self.text is not None:
            return load_config(text=self.text, name="--config-text", gates=self.gates)
        return read(self.path, self.gates)


class _Planning:
    def __init__(self, options: ServeOptions) -> None:
        from endpick.cli.serve_settings import pool_of

        self._lock_file = options["lock_file"] if options["locked"] else None
        self._endpoints_file = options["endpoints_file"]
        self._allow_experimental = options["allow_experimental_plugins"]
        self._state_url = options["state_url"]
        self._pool = pool_of(options)

    def outcome(self, loaded: LoadedConfig) -> PlanOutcome:
        from endpick.diagnostics import Diagnostic
        from endpick.host.discovery import discover
        from endpick.host.planning.plan import PlanOutcome
        from endpick.host.planning.planner import make_plan

        lock = None
        if self._lock_file is not None:
            from endpick.host.environment import load_lock

            lock = load_lock(self._lock_file)
        if isinstance(lock, Diagnostic):
            return PlanOutcome(None, (lock,))
        return make_plan(
            loaded,
            discover(),
            lock=lock,
            endpoints_file=self._endpoints_file,
            allow_experimental=self._allow_experimental,
            pool=self._pool,
            state_url=self._state_url,
        )


def _warn_of_idle_flags(given: Mapping[str, str], plan: Plan) -> None:
    from endpick.host.planning.pool import POOL_DISCOVERY

    in_kubernetes = any(instance.name == plan.discovery and instance.type == POOL_DISCOVERY for instance in plan.instances)
    idle = without_effect(given, in_kubernetes=in_kubernetes)
    if idle:
        _log.warning("some flags have no effect here", extra={"flags": "; ".join(idle)})


def _run(document: _Document, planning: _Planning, settings: ServeSettings, options: ServeOptions) -> int:
    from endpick.serve.main import run
    from endpick.serve.settings import Control
    from endpick.serve.workers.worker import as_worker, worker_role

    given, loaded = click.get_current_context().meta[GIVEN], document.read()
    role = worker_role()

    def serve(plan: Plan) -> None:
        _warn_of_idle_flags(given, plan)
        watchers = () if options["envoy_endpoints"] is None else (_eds_file(options["envoy_endpoints"]),)
        own, handover = (settings, None) if role is None else as_worker(settings, role)
        run(plan, own, Control(lambda: planning.outcome(document.read()), handover=handover, pool_watchers=watchers))

    def start_workers(plan: Plan) -> None:
        from endpick.serve.workers.supervisor import supervise

        code = supervise(settings, options["workers"], needs_store=plan.fleet is None)
        if code:
            sys.exit(code)

    outcome = planning.outcome(loaded)
    if role is not None:
        outcome = replace(
            outcome, diagnostics=tuple(one for one in outcome.diagnostics if one.is_error)
        )  # the supervisor has shown the others
    return run_plan(loaded, outcome, start_workers if role is None and options["workers"] > 1 else serve)


def _eds_file(path: Path) -> EdsFile:
    from endpick.diagnostics import Code, Diagnostic
    from endpick.serve.deployment import StartRefused
    from endpick.serve.eds import EdsFile

    try:
        return EdsFile(path)
    except OSError as error:
        message = f"the endpoints file {path} cannot be written: {error.strerror}"
        raise StartRefused(Diagnostic(Code.E0808, message, help="name a file in a writable folder with --envoy-endpoints")) from error


def run_plan(loaded: LoadedConfig, outcome: PlanOutcome, serve: Callable[[Plan], None]) -> int:
    """Print the diagnostics of a plan and serve it; returns the exit code."""
    from endpick.diagnostics import Code, Diagnostic, ExitCode
    from endpick.serve.deployment import StartRefused

    if outcome.plan is None:
        return _refuse(outcome.diagnostics, loaded)
    _print(outcome.diagnostics, loaded)
    try:
        serve(outcome.plan)
    except StartRefused as refusal:
        return _refuse(refusal.diagnostics, loaded)
    except ExceptionGroup as group:
        _print([Diagnostic(Code.E0704, str(each)) for each in group.exceptions], loaded)
        return ExitCode.FAILED
    return ExitCode.OK


def _refuse(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> int:
    from endpick.diagnostics import exit_code_of

    _print(diagnostics, loaded)
    return exit_code_of(diagnostics)


def _print(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> None:
    from endpick.cli.console import print_diagnostics

    print_diagnostics(diagnostics, [loaded])
