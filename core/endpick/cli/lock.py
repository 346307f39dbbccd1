"""`endpick lock`: pins the installed plugin distributions for `endpick serve --locked`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from endpick.cli.console import FORMAT_OPTION
from endpick.diagnostics import Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.host.discovery import discover, discover_hook_objects
from endpick.host.lock import FILE_NAME, check_lock, load_lock, lock_of


@click.command("lock")
@click.option("-o", "--output-file", type=click.Path(path_type=Path), default=Path(FILE_NAME), show_default=True, help="The lock file.")
@click.option("--check", "checks", is_flag=True, help="Write nothing; report differences from the lock file, with exit status 4.")
@FORMAT_OPTION
def command(output_file: Path, checks: bool, output: str) -> None:
    """Pin the installed plugins: name, version and digest of the RECORD of each distribution."""
    if checks:
        _check(output_file, output)
        return
    candidates = (*discover(), *discover_hook_objects())
    lock = lock_of(candidates)
    try:
        output_file.write_text(lock.render())
    except OSError as error:
        click.echo(f"error: the lock file {output_file} cannot be written: {error.strerror}", err=True)
        raise SystemExit(ExitCode.FAILED) from None
    # `serve --locked` would refuse files that differ from their RECORD.
    click.echo(render_text(check_lock(lock, candidates).diagnostics(), colour=wants_colour(sys.stderr)), nl=False, err=True)
    editable = sorted({one.distribution for one in candidates if one.source_path})
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
