"""`endpick up`: a gateway in one command, Envoy and the picker in front of model servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn
from urllib.parse import urlsplit

import click

from endpick.cli.options import Option, Port, Value, takes
from endpick.diagnostics import Code, Diagnostic, ExitCode

if TYPE_CHECKING:
    from endpick.config import LoadedConfig
    from endpick.host.hooks import Hooks
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.serve.settings import ServeSettings
    from endpick_gateway.up import UpSettings

_PRINTED_PICKER_PORT, _PRINTED_EDS_FILE = 9002, Path("/run/endpick/endpoints.json")  # as in the examples


@dataclass(frozen=True, slots=True)
class Server:
    """A model server as the command line names it."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """The address of the server, as `host:port`."""
        return f"{self.host}:{self.port}"


def server_of(url: str) -> Server:
    """Parse `http://host:port`; raises ValueError for any other URL."""
    mistake = f"'{url}' is not the URL of a model server; write it like http://gpu-1:8000"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise ValueError(mistake) from None
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(mistake)
    return Server(parts.hostname, port)


@dataclass(frozen=True)
class UpOptions:
    """The argument and the options of `endpick up`."""

    config: str | None = None  # the argument
    servers: Annotated[
        tuple[Server, ...], Value("url", server_of), Option("A model server: http://gpu-1:8000. Repeat.", "server", multiple=True)
    ] = ()
    endpoints_file: Annotated[Path | None, Option("File with the model servers. Watched.", "endpoints")] = None
    simulate: Annotated[int, click.IntRange(0, 64), Option("Start this many simulated model servers.")] = 0
    host: Annotated[str, Option("Address to listen on. Default: every interface.")] = ""
    port: Annotated[Port, Option("Port for clients; 0 for any free port.")] = 8080
    metrics_port: Annotated[Port, Option("Port of /metrics, /healthz and the admin API.")] = 9090
    tls_certificate: Annotated[Path | None, Option("PEM certificate for clients. Default: plain text.")] = None
    tls_key: Annotated[Path | None, Option("PEM key of the certificate.")] = None
    emit_endpoint_scores: Annotated[bool, Option("Write the score of each candidate to the access log.")] = False
    print_envoy: Annotated[bool, Option("Print Envoy's configuration, and start nothing.")] = False
    envoy_config: Annotated[Path | None, Option("Run Envoy with this changed output of --print-envoy; its listeners stay as they are.")] = (
        None
    )
    log_format: Annotated[Literal["auto", "text", "json"], Option("auto is text on a terminal, else JSON.")] = "auto"

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """The absolute paths of certificate and key."""
        return None if self.tls_certificate is None or self.tls_key is None else (self.tls_certificate.absolute(), self.tls_key.absolute())


@click.command("up", context_settings={"show_default": True})
@click.argument("config", required=False)
@takes(UpOptions)
def command(options: UpOptions) -> None:
    """Run a gateway: an OpenAI-compatible port that sends each request to the best model server.

    The servers come from --server, --endpoints or the discovery that CONFIG names. CONFIG is an EndpointPickerConfig file; without one,
    `predicted-latency` decides, and each request has a fallback server. SIGHUP reads it again. The access log goes to
    standard output, other logs to standard error.

    Exit code 3: the configuration is wrong. 4: a plugin is missing or broken. 5: Envoy, a port or the discovery failed.
    """
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together")
    if options.print_envoy:
        _print_envoy(options)
        return
    loaded = _load(options.config)
    _check_sources(loaded, options)
    from endpick.serve.logs import configure_logging

    stop_logging = configure_logging("info", options.log_format)
    try:
        with TemporaryDirectory(prefix="endpick-up-") as folder, simulated(options.simulate) as servers:
            sys.exit(_run(loaded, options, Path(folder), servers))
    finally:
        stop_logging()


def _load(config: str | None) -> LoadedConfig:
    from importlib.resources import files

    from endpick.cli.console import read
    from endpick.config import load_config

    if config is not None:
        return read(config)
    return load_config(text=files("endpick_gateway").joinpath("default.yaml").read_bytes(), name="<default of up>")


def _check_sources(loaded: LoadedConfig, options: UpOptions) -> None:
    listed = bool(options.servers or options.simulate)
    given = listed or options.endpoints_file is not None
    layer = None if loaded.config is None else loaded.config.data_layer
    named = None if layer is None else layer.discovery_ref
    if named is not None and given:
        raise click.UsageError(f"{loaded.path} names the discovery '{named[0]}'; remove it, or --server, --endpoints and --simulate")
    if listed and options.endpoints_file is not None:
        raise click.UsageError("--endpoints is for all model servers; name them there, or with --server")
    if named is None and not given and not loaded.has_errors:
        raise click.UsageError(
            "there are no model servers: give --server http://host:8000, --endpoints FILE, or a CONFIG that names a discovery;"
            " to try it without any, --simulate 4"
        )


def _run(loaded: LoadedConfig, options: UpOptions, folder: Path, simulated_servers: Sequence[Server]) -> int:
    from endpick.cli.serve import run_plan
    from endpick.host.discovery import discover
    from endpick.host.planning.planner import make_plan
    from endpick_gateway.up import serve_gateway

    servers = (*options.servers, *simulated_servers)
    endpoints_file = options.endpoints_file
    if servers:
        endpoints_file = folder / "servers.json"
        endpoints_file.write_bytes(_endpoints(servers))

    def plan_of(document: LoadedConfig, hooks: Hooks | None = None) -> PlanOutcome:
        outcome = make_plan(document, discover(), hooks=hooks, endpoints_file=endpoints_file)
        # Envoy follows the list here.
        return type(outcome)(outcome.plan, tuple(found for found in outcome.diagnostics if found.code is not Code.W0507))

    def serve(plan: Plan) -> None:
        serve_gateway(plan, _serve_settings(options), lambda: plan_of(_load(options.config), plan.hooks), _up_settings(options, folder))

    return run_plan(loaded, plan_of(loaded), serve)


def _serve_settings(options: UpOptions) -> ServeSettings:
    from endpick.serve.decisions import RecordSettings
    from endpick.serve.settings import HEALTH_LIMITS, ServeSettings
    from endpick.transport.listener import ListenSettings

    return ServeSettings(
        ext_proc=ListenSettings("127.0.0.1", 0),
        health=ListenSettings("127.0.0.1", 0, limits=HEALTH_LIMITS),
        metrics_host=options.host,
        metrics_port=options.metrics_port,
        emits_scores=options.emit_endpoint_scores,
        records=RecordSettings(sampling_ratio=1.0),
        config_file=None if options.config in (None, "-") else Path(options.config),
    )


def _up_settings(options: UpOptions, folder: Path) -> UpSettings:
    from endpick.engine.instances import StartRefused
    from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
    from endpick_gateway.up import UpSettings

    try:
        envoy = find_envoy(os.environ, Path.cwd())
    except EnvoyNotFoundError as missing:
        raise StartRefused(Diagnostic(Code.E0809, str(missing), help=missing.help)) from missing
    own_config = None if options.envoy_config is None else _own_config(options.envoy_config)
    return UpSettings(envoy, folder, options.host, options.port, options.certificate, own_config)


def _own_config(path: Path) -> Mapping[str, object]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from endpick_gateway.envoy_config import EnvoySettings, adapted

    try:
        document: Mapping[str, object] = YAML(typ="safe").load(path.read_text())
        adapted(document, EnvoySettings(0, path))
    except (OSError, ValueError, YAMLError, AttributeError, TypeError) as error:
        _fail(f"--envoy-config {path} cannot be used: {error}", "begin with the output of `endpick up --print-envoy`")
    return document


def _print_envoy(options: UpOptions) -> None:
    from ruamel.yaml import YAML

    from endpick_gateway.envoy_config import bootstrap
    from endpick_gateway.up import UpSettings

    up = UpSettings(Path(), Path(), options.host, options.port, options.certificate)
    settings = up.envoy_settings(_PRINTED_PICKER_PORT, _PRINTED_EDS_FILE, logs_scores=options.emit_endpoint_scores)
    writer = YAML()
    writer.width = 140
    writer.dump(bootstrap(settings), sys.stdout)


def _endpoints(servers: Sequence[Server]) -> bytes:
    import orjson

    entries = [{"name": server.name, "address": _resolve(server), "port": server.port} for server in servers]
    return orjson.dumps({"endpoints": entries})


def _resolve(server: Server) -> str:
    """IPv4 first: model servers rarely listen on IPv6."""
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = "give an IP address, or use dns-discovery in CONFIG for names that change"
        _fail(f"the name of --server http://{server.name} cannot be resolved: {error.strerror}", advice)
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])


@contextmanager
def simulated(count: int) -> Iterator[tuple[Server, ...]]:
    """Run simulated model servers on free ports until the block ends."""
    from endpick_gateway.envoy import die_with_parent

    processes = [
        subprocess.Popen(  # noqa: S603
            (sys.executable, "-m", "endpick", "sim-server", "--port", "0", "--name", f"sim-{number}"),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only endpick, which lets open requests finish
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - takes no locks
        )
        for number in range(count)
    ]
    try:
        yield tuple(server_of(process.stdout.readline().split()[-1]) for process in processes if process.stdout is not None)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _fail(message: str, advice: str) -> NoReturn:
    click.echo(f"error: {message}\nhelp: {advice}", err=True)
    raise SystemExit(ExitCode.FAILED)
