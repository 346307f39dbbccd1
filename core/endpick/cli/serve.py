"""`endpick serve`: the main job."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from typing_extensions import Unpack

from endpick.cli.go_flags import GIVEN, GoCommand
from endpick.cli.llm_d_flags import REMOVED, unused_options, without_effect
from endpick.cli.serve_options import serve_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from endpick.cli.serve_settings import ServeOptions
    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.serve.process import ServeSettings

_log = logging.getLogger("endpick.serve")


class ServeCommand(GoCommand):
    """`serve` takes llm-d's command lines as they are."""

    removed = REMOVED


@click.command("serve", cls=ServeCommand)
@click.argument("config", required=False)
@serve_options
@unused_options()
def command(**options: Unpack[ServeOptions]) -> None:
    """Serve a gateway: pick an endpoint for every request.

    CONFIG is an EndpointPickerConfig file. Ends with exit code 3 when the configuration is wrong, 4 when a plugin is missing or
    broken, 5 when a port, a plugin's start or the discovery does not work.
    """
    path, text = options["config"] or options["config_file"], options["config_text"]
    if sum(source is not None for source in (options["config"], options["config_file"], text)) > 1:
        raise click.UsageError("give the configuration once: CONFIG, --config-file or --config-text")

    # The library of grpcio writes to standard error by itself, once for each of many things that a client may do, and with what it says.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # What start-up makes stays, and the collector would look at all of it again and again. It works again once requests are answered.
    gc.disable()
    from endpick.cli.serve_settings import log_format, log_level, settings_of
    from endpick.serve.logs import configure_logging

    configure_logging(log_level(options), log_format(options))
    settings = settings_of(options)
    planning = _Planning(options)
    sys.exit(_run(_Document(path, text), planning, settings, click.get_current_context().meta[GIVEN]))


@dataclass(frozen=True, slots=True)
class _Document:
    """Where the configuration stands."""

    path: str | None
    text: str | None

    def read(self) -> LoadedConfig:
        """For the start."""
        from endpick.cli.console import read
        from endpick.config import load_config

        return read(self.path) if self.text is None else load_config(text=self.text, name="--config-text")


class _Planning:
    """How the configuration becomes a plan; again at each reload."""

    def __init__(self, options: ServeOptions) -> None:
        from endpick.cli.serve_settings import pool_of

        self._lock_file = options["lock_file"] if options["locked"] else None
        self._endpoints_file = options["endpoints_file"]
        self._allow_experimental = options["allow_experimental_plugins"]
        self._pool = pool_of(options)

    def outcome(self, loaded: LoadedConfig) -> PlanOutcome:
        """The lock file is read each time, so that a reload sees a new one."""
        from endpick.diagnostics import Diagnostic
        from endpick.host.discovery import discover
        from endpick.host.planning.plan import PlanOutcome
        from endpick.host.planning.planner import make_plan

        lock = None
        if self._lock_file is not None:
            from endpick.host.lock import load_lock

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
        )


def _warn_of_idle_flags(given: Mapping[str, str], plan: Plan) -> None:
    from endpick.host.planning.pool import POOL_DISCOVERY

    in_kubernetes = any(instance.name == plan.discovery and instance.type == POOL_DISCOVERY for instance in plan.instances)
    idle = without_effect(given, in_kubernetes=in_kubernetes)
    if idle:
        _log.warning("some flags have no effect here", extra={"flags": "; ".join(idle)})


def _run(document: _Document, planning: _Planning, settings: ServeSettings, given: Mapping[str, str]) -> int:
    from endpick.diagnostics import Code, Diagnostic, ExitCode
    from endpick.host.failures import message_of
    from endpick.serve.deployment import StartRefused
    from endpick.serve.main import run

    loaded = document.read()
    outcome = planning.outcome(loaded)
    if outcome.plan is None:
        return _refuse(outcome.diagnostics, loaded)
    _print(outcome.diagnostics, loaded)
    _warn_of_idle_flags(given, outcome.plan)
    try:
        run(outcome.plan, settings, lambda: planning.outcome(document.read()))
    except StartRefused as refusal:
        return _refuse(refusal.diagnostics, loaded)
    except ExceptionGroup as group:
        _print([Diagnostic(Code.E0704, message_of(each)) for each in group.exceptions], loaded)
        return ExitCode.FAILED
    return ExitCode.OK


def _refuse(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> int:
    from endpick.diagnostics import exit_code_of

    _print(diagnostics, loaded)
    return exit_code_of(diagnostics)


def _print(diagnostics: Sequence[Diagnostic], loaded: LoadedConfig) -> None:
    from endpick.cli.console import print_diagnostics

    print_diagnostics(diagnostics, [loaded])
