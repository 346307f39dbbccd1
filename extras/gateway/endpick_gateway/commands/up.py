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
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click

from endpick.diagnostics import Code, Diagnostic, ExitCode

if TYPE_CHECKING:
    from endpick.config import LoadedConfig
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.serve.settings import ServeSettings
    from endpick_gateway.up import UpSettings

_FILE = click.Path(path_type=Path)
_PORT = click.IntRange(0, 65535)
_MAX_PORT = 65535
_PRINTED_PICKER_PORT, _PRINTED_EDS_FILE = 9002, Path("/run/endpick/endpoints.json")  # as in the examples


@dataclass(frozen=True, slots=True)
class Server:
    """A model server as the command line names it."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


def server_of(url: str) -> Server:
    """Raises ValueError for anything but `http://host:port`."""
    parts = urlsplit(url)
    port = parts.port or 80
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(url)
    return Server(parts.hostname, port)


def _servers(_context: click.Context, _parameter: click.Parameter, urls: Sequence[str]) -> tuple[Server, ...]:
    servers = []
    for url in urls:
        try:
            servers.append(server_of(url))
        except ValueError:
            raise click.BadParameter(f"'{url}' is not the URL of a model server; write it like http://gpu-1:8000") from None
    return tuple(servers)


@click.command("up", context_settings={"show_default": True})
@click.argument("config", required=False)
@click.option("--server", "servers", multiple=True, callback=_servers, metavar="URL", help="A model server: http://gpu-1:8000. Repeat.")
@click.option("--endpoints", "endpoints_file", type=_FILE, help="File with the model servers. Watched.")
@click.option("--simulate", type=click.IntRange(0, 64), default=0, help="Start this many simulated model servers.")
@click.option("--host", default="", help="Address to listen on. Default: every interface.")
@click.option("--port", type=_PORT, default=8080, help="Port for clients; 0 for any free port.")
@click.option("--metrics-port", type=_PORT, default=9090, help="Port of /metrics, /healthz and the admin API.")
@click.option("--tls-certificate", type=_FILE, help="PEM certificate for clients. Default: plain text.")
@click.option("--tls-key", type=_FILE, help="PEM key of the certificate.")
@click.option("--emit-endpoint-scores", is_flag=True, help="Write the score of each candidate to the access log.")
@click.option("--print-envoy", is_flag=True, help="Print Envoy's configuration, and start nothing.")
@click.option("--envoy-config", type=_FILE, help="Run Envoy with this changed output of --print-envoy; its listeners stay as they are.")
@click.option("--log-format", type=click.Choice(["auto", "text", "json"]), default="auto", help="auto is text on a terminal, else JSON.")
def command(config: str | None, **options: Any) -> None:  # noqa: ANN401 - click gives each option its type
    """Run a gateway: an OpenAI-compatible port that sends each request to the best model server.

    The servers come from --server, --endpoints or the discovery that CONFIG names. CONFIG is an EndpointPickerConfig file; without one,
    `predicted-latency` decides, and each request has a fallback server. SIGHUP reads it again. The access log goes to
    standard output, other logs to standard error.

    Exit code 3: the configuration is wrong. 4: a plugin is missing or broken. 5: Envoy, a port or the discovery failed.
    """
    if (options["tls_certificate"] is None) != (options["tls_key"] is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together")
    if options["print_envoy"]:
        _print_envoy(options)
        return
    loaded = _load(config)
    _check_sources(loaded, options)
    from endpick.serve.logs import configure_logging

    stop_logging = configure_logging("info", options["log_format"])
    try:
        with TemporaryDirectory(prefix="endpick-up-") as folder, simulated(options["simulate"]) as servers:
            sys.exit(_run(config, loaded, options, Path(folder), servers))
    finally:
        stop_logging()


def _load(config: str | None) -> LoadedConfig:
    from importlib.resources import files

    from endpick.cli.console import read
    from endpick.config import load_config

    if config is not None:
        return read(config)
    return load_config(text=files("endpick_gateway").joinpath("default.yaml").read_bytes(), name="<default of up>")


def _check_sources(loaded: LoadedConfig, options: Mapping[str, Any]) -> None:
    given = [name for name in ("servers", "endpoints_file", "simulate") if options[name]]
    layer = None if loaded.config is None else loaded.config.data_layer
    named = None if layer is None else layer.discovery_ref
    if named is not None and given:
        raise click.UsageError(f"{loaded.path} names the discovery '{named[0]}'; remove it, or --server, --endpoints and --simulate")
    if "endpoints_file" in given and len(given) > 1:
        raise click.UsageError("--endpoints is for all model servers; name them there, or with --server")
    if named is None and not given and not loaded.has_errors:
        raise click.UsageError(
            "there are no model servers: give --server http://host:8000, --endpoints FILE, or a CONFIG that names a discovery;"
            " to try it without any, --simulate 4"
        )


def _run(config: str | None, loaded: LoadedConfig, options: Mapping[str, Any], folder: Path, simulated_servers: Sequence[Server]) -> int:
    from endpick.cli.serve import run_plan
    from endpick.host.discovery import discover
    from endpick.host.planning.planner import make_plan
    from endpick_gateway.up import serve_gateway

    servers = (*options["servers"], *simulated_servers)
    endpoints_file = options["endpoints_file"]
    if servers:
        endpoints_file = folder / "servers.json"
        endpoints_file.write_bytes(_endpoints(servers))

    def plan_of(document: LoadedConfig) -> PlanOutcome:
        outcome = make_plan(document, discover(), endpoints_file=endpoints_file)
        # Envoy follows the list here.
        return type(outcome)(outcome.plan, tuple(one for one in outcome.diagnostics if one.code is not Code.W0507))

    def serve(plan: Plan) -> None:
        serve_gateway(plan, _serve_settings(config, options), lambda: plan_of(_load(config)), _up_settings(options, folder))

    return run_plan(loaded, plan_of(loaded), serve)


def _serve_settings(config: str | None, options: Mapping[str, Any]) -> ServeSettings:
    from endpick.serve.decisions import RecordSettings
    from endpick.serve.settings import HEALTH_LIMITS, ServeSettings
    from endpick.transport.listener import ListenSettings

    return ServeSettings(
        ext_proc=ListenSettings("127.0.0.1", 0),
        health=ListenSettings("127.0.0.1", 0, limits=HEALTH_LIMITS),
        metrics_host=options["host"],
        metrics_port=options["metrics_port"],
        emits_scores=options["emit_endpoint_scores"],
        records=RecordSettings(sampling_ratio=1.0),
        config_file=None if config in (None, "-") else Path(config),
    )


def _up_settings(options: Mapping[str, Any], folder: Path) -> UpSettings:
    from endpick.serve.deployment import StartRefused
    from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
    from endpick_gateway.up import UpSettings

    try:
        envoy = find_envoy(os.environ, Path.cwd())
    except EnvoyNotFoundError as missing:
        raise StartRefused(Diagnostic(Code.E0809, str(missing), help=missing.help)) from missing
    own_config = None if options["envoy_config"] is None else _own_config(options["envoy_config"])
    return UpSettings(envoy, folder, options["host"], options["port"], _certificate(options), own_config)


def _certificate(options: Mapping[str, Any]) -> tuple[Path, Path] | None:
    if options["tls_certificate"] is None:
        return None
    return options["tls_certificate"].absolute(), options["tls_key"].absolute()


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


def _print_envoy(options: Mapping[str, Any]) -> None:
    from ruamel.yaml import YAML

    from endpick_gateway.envoy_config import bootstrap
    from endpick_gateway.up import UpSettings

    up = UpSettings(Path(), Path(), options["host"], options["port"], _certificate(options))
    settings = up.envoy_settings(_PRINTED_PICKER_PORT, _PRINTED_EDS_FILE, logs_scores=options["emit_endpoint_scores"])
    writer = YAML()
    writer.width = 140
    writer.dump(bootstrap(settings), sys.stdout)


def _endpoints(servers: Sequence[Server]) -> bytes:
    import orjson

    entries = [{"name": each.name, "address": _resolve(each), "port": each.port} for each in servers]
    return orjson.dumps({"endpoints": entries})


def _resolve(server: Server) -> str:
    """IPv4 first: model servers rarely listen on IPv6."""
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = "give an IP address, or use dns-discovery in CONFIG for names that change"
        _fail(f"the name of --server http://{server.name} cannot be resolved: {error.strerror}", advice)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


@contextmanager
def simulated(count: int) -> Iterator[tuple[Server, ...]]:
    """Simulated model servers on free ports."""
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
