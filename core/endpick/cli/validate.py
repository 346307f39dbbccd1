"""`endpick validate` and `endpick lock`: report every mistake in a configuration, and pin the installed plugins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from endpick.api import PluginContext
from endpick.cli.console import ENDPOINTS_OPTION, FORMAT_OPTION, fail, print_diagnostics, read
from endpick.cli.llm_d_flags import GoCommand
from endpick.cli.options import takes
from endpick.cli.serve_options import FeatureGates, PoolOptions, pool_of
from endpick.config import LoadedConfig
from endpick.diagnostics import (
    Diagnostic,
    ExitCode,
    Severity,
    exit_code_of,
    has_errors,
    render_github,
    render_json,
    render_text,
    sort_diagnostics,
    wants_colour,
)
from endpick.engine.building import build_plan
from endpick.host.discovery import Candidate, discover, discover_hook_objects
from endpick.host.environment import FILE_NAME, LockDocument, check_lock, load_lock, lock_of
from endpick.host.planning.planner import check_statically, make_plan
from endpick.host.planning.pool import NO_POOL, PoolSettings, discovery_by_flags


@dataclass(frozen=True)
class _ServeOptions(PoolOptions):
    """The options of `serve` that validation depends on."""

    feature_gates: FeatureGates = ()


@click.command("validate", cls=GoCommand, short_help="Find every mistake in a configuration.")
@click.argument("configs", metavar="CONFIG...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with code 3 on warnings.")
@click.option("--static", is_flag=True, help="Run no third-party code; parameters of third-party plugins are not checked.")
@ENDPOINTS_OPTION
@click.option("--format", "output", type=click.Choice(["text", "json", "github"]), default="text", show_default=True)
@takes(_ServeOptions)
def validate(
    configs: tuple[str, ...],
    strict: bool,
    static: bool,
    endpoints_file: Path | None,
    output: Literal["text", "json", "github"],
    options: _ServeOptions,
) -> None:
    """Find every mistake in each CONFIG; `-` reads standard input. Give the flags that `serve` gets, so that they are checked, too.

    Exit code 0: no errors; 3: a configuration is wrong or cannot be read; 4: only a plugin is missing, broken or incompatible.
    """
    installed, pool = discover(), pool_of(options)
    documents = [read(config, options.feature_gates) for config in configs]
    judged = [(loaded, _judge(loaded, installed, static, endpoints_file, pool)) for loaded in documents]
    found = [diagnostic for _, diagnostics in judged for diagnostic in diagnostics]
    match output:
        case "json":
            click.echo(render_json(found), nl=False)
        case "github":
            click.echo(render_github(found), nl=False)
        case "text":
            print_diagnostics(found, [loaded for loaded, _ in judged])
            for loaded, diagnostics in judged:
                click.echo(_verdict(loaded, diagnostics))
    sys.exit(_exit_code(found, strict))


def _judge(
    loaded: LoadedConfig, installed: Sequence[Candidate], static: bool, endpoints_file: Path | None, pool: PoolSettings
) -> tuple[Diagnostic, ...]:
    found = check_statically(loaded, installed) if static else judge_plan(loaded, installed, endpoints_file, pool)
    if endpoints_file is not None or pool.names_a_pool or has_errors(found):
        return found  # another mistake may have hidden the discovery
    left = discovery_by_flags(loaded)
    return found if left is None else sort_diagnostics((*found, left))


def judge_plan(
    loaded: LoadedConfig, installed: Sequence[Candidate], endpoints_file: Path | None = None, pool: PoolSettings = NO_POOL
) -> tuple[Diagnostic, ...]:
    """Plan and build a configuration; returns every mistake found."""
    outcome = make_plan(loaded, installed, endpoints_file=endpoints_file, pool=pool)
    # some parameters only a constructor can check
    built = None if outcome.plan is None else build_plan(outcome.plan, lambda _: PluginContext())
    return (*outcome.diagnostics, *(built if isinstance(built, tuple) else ()))


def _exit_code(found: Sequence[Diagnostic], strict: bool) -> int:
    if strict and not has_errors(found) and any(diagnostic.severity is Severity.WARNING for diagnostic in found):
        return ExitCode.CONFIG_INVALID
    return exit_code_of(found)


def _verdict(loaded: LoadedConfig, diagnostics: Sequence[Diagnostic]) -> str:
    errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
    warnings = sum(diagnostic.severity is Severity.WARNING for diagnostic in diagnostics)
    counts = ", ".join(_count(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number)
    return f"{loaded.path}: {counts or 'ok'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


OUTPUTS = {"lock": LockDocument}


@click.command("lock")
@click.option("-o", "--output-file", type=click.Path(path_type=Path), default=Path(FILE_NAME), show_default=True, help="The lock file.")
@click.option("--check", "checks", is_flag=True, help="Write nothing; report differences from the lock file, with exit status 4.")
@FORMAT_OPTION
def lock(output_file: Path, checks: bool, output: str) -> None:
    """Pin the installed plugins: name, version and digest of the RECORD of each distribution."""
    if checks:
        _check(output_file, output)
        return
    candidates = (*discover(), *discover_hook_objects())
    lock = lock_of(candidates)
    try:
        output_file.write_text(lock.render())
    except OSError as error:
        fail(f"the lock file {output_file} cannot be written: {error.strerror}")
    # Files that differ from their RECORD would be refused by `serve --locked`.
    click.echo(render_text(check_lock(lock, candidates).diagnostics(), colour=wants_colour(sys.stderr)), nl=False, err=True)
    editable = sorted({candidate.distribution for candidate in candidates if candidate.source_path})
    if editable:
        click.echo(f"warning: the source of editable installs is not pinned: {', '.join(editable)}", err=True)
    click.echo(lock.render() if output == "json" else f"{output_file}: {len(lock.pins)} distributions\n", nl=False)


def _check(file: Path, output: str) -> None:
    lock = load_lock(file)
    found = (lock,) if isinstance(lock, Diagnostic) else check_lock(lock, (*discover(), *discover_hook_objects())).diagnostics()
    if output == "json":
        click.echo(render_json(found))
    elif found:
        click.echo(render_text(found, colour=wants_colour(sys.stderr)), nl=False, err=True)
    else:
        click.echo(f"the installed plugins match {file}")
    if found:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)
