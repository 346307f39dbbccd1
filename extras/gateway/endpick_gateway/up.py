"""Runs the picker and its Envoy as one process to start, to watch and to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic
from endpick.engine.instances import StartRefused
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.serve.eds import EdsFile
from endpick.serve.main import run
from endpick.serve.settings import Control, ServeSettings
from endpick.transport.listener import ListenError, ListenSettings, listening_socket
from endpick.transport.tls import TlsError, TlsSettings, read_certificate, server_context
from endpick_gateway.envoy import Envoy
from endpick_gateway.envoy_config import EnvoySettings, adapted, bootstrap


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Settings of the Envoy that `endpick up` runs."""

    envoy: Path  # the binary
    folder: Path  # for files of this run
    host: str = ""  # empty: all interfaces
    port: int = 8080
    certificate: tuple[Path, Path] | None = None
    own_config: Mapping[str, object] | None = None  # the operator's; its listeners stay as they are

    def envoy_settings(self, picker_port: int, eds_file: Path, *, logs_scores: bool) -> EnvoySettings:
        """Return the settings of Envoy's configuration, which listens on all interfaces by default."""
        host = self.host or "::"
        return EnvoySettings(picker_port, eds_file, host, self.port, self.certificate, logs_access=True, logs_scores=logs_scores)


def serve_gateway(plan: Plan, settings: ServeSettings, replan: Callable[[], PlanOutcome], up: UpSettings) -> None:
    """Serve clients until SIGTERM or SIGINT. Raises like `run`."""
    if up.own_config is None:
        up = replace(up, host=_checked_address(up))
    eds_file = up.folder / "endpoints.json"

    def config_for(picker_port: int) -> Mapping[str, object]:
        envoy = up.envoy_settings(picker_port, eds_file, logs_scores=settings.emits_scores)
        return bootstrap(envoy) if up.own_config is None else adapted(up.own_config, envoy)

    gateway = Envoy(up.envoy, up.folder, config_for, "http" if up.certificate is None else "https")
    run(plan, settings, Control(replan, gateway=gateway, pool_watchers=(EdsFile(eds_file),)))


def _checked_address(up: UpSettings) -> str:
    """The IP address to listen on. Envoy takes no names, and would share the port of another Envoy."""
    try:
        with listening_socket(ListenSettings(up.host, up.port)) as bound:
            address = str(bound.getsockname()[0])
    except ListenError as error:
        raise StartRefused(Diagnostic(Code.E0801, str(error), help=error.advice)) from error
    if up.certificate is not None:
        try:
            tls = TlsSettings(*up.certificate)
            server_context(read_certificate(tls), tls)
        except TlsError as error:
            advice = "--tls-certificate and --tls-key must be PEM files that belong together"
            raise StartRefused(Diagnostic(Code.E0802, str(error), help=advice)) from error
    return address
