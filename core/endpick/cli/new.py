"""`endpick new`: creates a project for a new plugin."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from endpick.cli.console import FORMAT_OPTION, json_text
from endpick.cli.scaffold import KINDS, Project

if TYPE_CHECKING:
    from endpick.cli.scaffold import ProjectDraft


@click.command("new", short_help="Create a project for a new plugin.")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), required=True, help="Kind of the plugin.")
@click.option("--vendor", help="First part of the plugin type: acme gives acme.NAME.")
@click.option(
    "--output", "parent", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Folder in which to create the project."
)
@FORMAT_OPTION
def command(name: str, kind: str, vendor: str | None, parent: Path, output: str) -> None:
    """Create a project for the new plugin NAME: typed, tested and ready to publish. Asks nothing.

    NAME is the plugin type with its vendor, such as acme.short-queue, or without it if --vendor is given.
    """
    plan = _draft(name if vendor is None else _with_vendor(vendor, name), kind, parent)
    folder = _write(plan, parent)
    facts = _facts(plan.project, folder)
    click.echo(json_text(facts) if output == "json" else _text(plan.project, folder), nl=False)


def _with_vendor(vendor: str, name: str) -> str:
    if "." in name:
        raise click.BadParameter(f"'{name}' has a vendor already; leave out --vendor", param_hint="NAME")
    return f"{vendor}.{name}"


def _draft(plugin_type: str, kind: str, parent: Path) -> ProjectDraft:
    from endpick.cli.scaffold import draft, refuse, refuse_type
    from endpick.host.discovery import discover

    reason = refuse_type(plugin_type)
    if reason is not None:
        raise click.BadParameter(reason, param_hint="NAME")
    try:
        plan = draft(plugin_type, kind)
    except ModuleNotFoundError as missing:
        click.echo(f"error: '{missing.name}' is not installed, and `endpick new` needs it; pip install 'endpick[scaffold]'", err=True)
        sys.exit(_failed())
    reason = refuse(plan.project, discover(), parent)
    if reason is not None:
        raise click.BadParameter(reason, param_hint="NAME")
    return plan


def _write(plan: ProjectDraft, parent: Path) -> Path:
    from endpick.cli.scaffold import write

    try:
        return write(plan, parent)
    except OSError as problem:
        click.echo(f"error: '{parent / plan.project.distribution}' cannot be written: {problem.strerror or problem}", err=True)
        sys.exit(_failed())


def _failed() -> int:
    from endpick.diagnostics import ExitCode

    return ExitCode.FAILED


def _next(folder: Path) -> tuple[str, ...]:
    return (
        f"cd {shlex.quote(str(folder))}",
        "python -m pip install --editable '.[dev]'",
        "python -m pytest",
    )


def _facts(project: Project, folder: Path) -> dict[str, object]:
    return {
        "type": project.plugin_type,
        "types": list(project.types),
        "kind": project.kind,
        "distribution": project.distribution,
        "package": project.package,
        "folder": str(folder),
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
        "next": list(_next(folder)),
    }


def _text(project: Project, folder: Path) -> str:
    commands = "".join(f"  {command}\n" for command in _next(folder))
    return (
        f"made {folder}: the {project.kind} {' and its collector '.join(project.types)}\n\n{commands}\n"
        f"Your idea goes into src/{project.package}/{project.module}.py.\n"
    )
