"""`endpick serve`: answers a gateway."""

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
from endpick.cli.llm_d_flags import FLAGS, REMOVED, Effect, without_effect
from endpick.cli.serve_options import PARAMETERS, write_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from endpick.cli.serve_settings import ServeOptions
    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.serve.process import ServeSettings

_log = logging.getLogger("endpick.serve")


_UNUSED = ", ".join(f"--{flag.name}" for flag in FLAGS if flag.effect is Effect.NONE)


class ServeCommand(GoCommand):
    """Accepts llm-d's command lines unchanged, and groups the options in `--help`."""

    removed = REMOVED

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group."""
        write_groups(ctx, formatter)


@click.command(
    "serve", cls=ServeCommand, params=PARAMETERS, epilog=f"llm-d's flags {_UNUSED} are accepted and have no effect; see `endpick migrate`."
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

    settings, planning = settings_of(options), _Planning(options)
    stop_logging = configure_logging(log_level(options), log_format(options))
    try:
        sys.exit(_run(_Document(path, text), planning, settings, click.get_current_context().meta[GIVEN]))
    finally:
        stop_logging()


@dataclass(frozen=True, slots=True)
class _Document:
    """The source of the configuration."""

    path: str | None
    text: str | None

    def read(self) -> LoadedConfig:
        """Read it for the start."""
        from endpick.cli.console import read
        from endpick.config import load_config

        return read(self.path) if self.text is None else load_config(text=self.text, name="--config-text")

    def read_again(self) -> LoadedConfig:
        """Read it for a reload; mistakes are diagnostics."""
        from endpick.config import load_config

        return self.read() if self.path is None else load_config(self.path)


class _Planning:
    """Makes a plan of the configuration, at start and at each reload."""

    def __init__(self, options: ServeOptions) -> None:
        from endpick.cli.serve_settings import pool_of

        self._lock_file = options["lock_file"] if options["locked"] else None
        self._endpoints_file = options["endpoints_file"]
        self._allow_experimental = options["allow_experimental_plugins"]
        self._pool = pool_of(options)

    def outcome(self, loaded: LoadedConfig) -> PlanOutcome:
        """Plan a configuration; reads the lock file each time."""
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
