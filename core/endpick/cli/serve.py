"""`endpick serve`: answers a gateway."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from endpick.cli.llm_d_flags import FLAGS, GIVEN, Effect, GoCommand, unused_options, without_effect
from endpick.cli.options import takes
from endpick.cli.serve_options import ServeOptions, log_format, log_level, pool_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from endpick.config import LoadedConfig
    from endpick.host.hooks import Hooks
    from endpick.host.planning.plan import Plan, PlanOutcome
    from endpick.host.planning.pool import PoolSettings
    from endpick.serve.eds import EdsFile
    from endpick.serve.settings import ServeSettings
    from endpick.serve.workers.worker import WorkerRole

_log = logging.getLogger("endpick.serve")

_UNUSED = ", ".join(f"--{flag.name}" for flag in FLAGS if flag.effect is Effect.NONE)


class ServeCommand(GoCommand):
    """Accepts llm-d's command lines; groups the options in `--help`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of `--help` in a section for each class of options."""
        records = {option.name: option.get_help_record(ctx) for option in self.params}
        for group in ServeOptions.__bases__:
            with formatter.section((group.__doc__ or "").rstrip(".")):
                formatter.write_dl([record for name in inspect.get_annotations(group) if (record := records[name]) is not None])


@click.command(
    "serve",
    cls=ServeCommand,
    epilog=f"These flags of llm-d are accepted and have no effect, see `endpick migrate`: {_UNUSED}.",
)
@click.argument("config", required=False)
@takes(ServeOptions)
def command(options: ServeOptions) -> None:
    """Serve a gateway: pick an endpoint for every request.

    CONFIG is an EndpointPickerConfig file. Exit code 3: the configuration is wrong. 4: a plugin is missing or broken. 5: a port, a
    plugin's start or the discovery failed.
    """
    if sum(source is not None for source in (options.config, options.config_file, options.config_text)) > 1:
        raise click.UsageError("give the configuration once: CONFIG, --config-file or --config-text")

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpcio logs to standard error by itself
    gc.disable()  # objects made at start stay; `run` enables it again
    from endpick.serve.logs import configure_logging
    from endpick.serve.workers.worker import worker_role

    settings, source = settings_of(options), _Source(options, pool_of(options))
    role = worker_role()
    stop_logging = configure_logging(log_level(options), log_format(options), worker=None if role is None else role.number)
    try:
        sys.exit(_run(source, settings, role))
    finally:
        stop_logging()


command.params += unused_options()


@dataclass(frozen=True, slots=True)
class _Source:
    """Reads the configuration and makes a plan, at start and at each reload."""

    options: ServeOptions
    pool: PoolSettings

    def read(self) -> LoadedConfig:
        from endpick.cli.console import read
        from endpick.config import load_config

        gates = self.options.feature_gates
        if self.options.config_text is not None:
            return load_config(text=self.options.config_text, name="--config-text", gates=gates)
        return read(self.options.path, gates)

    def plan(self, loaded: LoadedConfig, hooks: Hooks | None = None) -> PlanOutcome:
        from endpick.diagnostics import Diagnostic
        from endpick.host.discovery import discover
        from endpick.host.environment import load_lock
        from endpick.host.planning.plan import PlanOutcome
        from endpick.host.planning.planner import make_plan

        lock = load_lock(self.options.lock_file) if self.options.locked else None
        if isinstance(lock, Diagnostic):
            return PlanOutcome(None, (lock,))
        return make_plan(
            loaded,
            discover(),
            hooks=hooks,
            lock=lock,
            endpoints_file=self.options.endpoints_file,
            allow_experimental=self.options.allow_experimental_plugins,
            pool=self.pool,
            state_url=self.options.state_url,
        )


def _warn_of_idle_flags(given: Mapping[str, str], plan: Plan) -> None:
    from endpick.host.planning.pool import POOL_DISCOVERY

    in_kubernetes = any(instance.name == plan.discovery and instance.type == POOL_DISCOVERY for instance in plan.instances)
    idle = without_effect(given, in_kubernetes=in_kubernetes)
    if idle:
        _log.warning("some flags have no effect here", extra={"flags": "; ".join(idle)})


def _run(source: _Source, settings: ServeSettings, role: WorkerRole | None) -> int:
    from endpick.serve.main import run
    from endpick.serve.settings import Control
    from endpick.serve.workers.worker import as_worker

    options, given, loaded = source.options, click.get_current_context().meta[GIVEN], source.read()

    def serve(plan: Plan) -> None:
        _warn_of_idle_flags(given, plan)
        watchers = () if options.envoy_endpoints is None else (_eds_file(options.envoy_endpoints),)
        own, handover = (settings, None) if role is None else as_worker(settings, role)
        run(plan, own, Control(lambda: source.plan(source.read(), plan.hooks), handover=handover, pool_watchers=watchers))

    def start_workers(plan: Plan) -> None:
        from endpick.serve.workers.supervisor import supervise

        code = supervise(settings, options.workers, needs_store=plan.fleet is None)
        if code:
            sys.exit(code)

    outcome = source.plan(loaded)
    if role is not None:  # the supervisor has shown warnings
        outcome = replace(outcome, diagnostics=tuple(found for found in outcome.diagnostics if found.is_error))
    return run_plan(loaded, outcome, start_workers if role is None and options.workers > 1 else serve)


def _eds_file(path: Path) -> EdsFile:
    from endpick.diagnostics import Code, Diagnostic
    from endpick.engine.instances import StartRefused
    from endpick.serve.eds import EdsFile

    try:
        return EdsFile(path)
    except OSError as error:
        message = f"the endpoints file {path} cannot be written: {error.strerror}"
        raise StartRefused(Diagnostic(Code.E0808, message, help="name a file in a writable folder with --envoy-endpoints")) from error


def run_plan(loaded: LoadedConfig, outcome: PlanOutcome, serve: Callable[[Plan], None]) -> int:
    """Print the diagnostics of a plan, serve it, and return the exit code."""
    from endpick.cli.console import print_diagnostics
    from endpick.diagnostics import Code, Diagnostic, ExitCode, exit_code_of
    from endpick.engine.instances import StartRefused

    print_diagnostics(outcome.diagnostics, [loaded])
    if outcome.plan is None:
        return exit_code_of(outcome.diagnostics)
    try:
        serve(outcome.plan)
    except StartRefused as refusal:
        print_diagnostics(refusal.diagnostics, [loaded])
        return exit_code_of(refusal.diagnostics)
    except ExceptionGroup as group:
        print_diagnostics([Diagnostic(Code.E0704, str(error)) for error in group.exceptions], [loaded])
        return ExitCode.FAILED
    return ExitCode.OK
