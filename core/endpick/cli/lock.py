"""`endpick lock`: pins which distribution provides which plugin type, for `endpick serve --locked`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from endpick.cli.console import FORMAT_OPTION
from endpick.diagnostics import Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.files import write_given
from endpick.host.discovery import discover
from endpick.host.hook_objects import discover_hook_objects
from endpick.host.lock import FILE_NAME, load_lock, lock_of
from endpick.host.lock_check import LockCheck


@click.command("lock")
@click.option("-o", "--output-file", type=click.Path(path_type=Path), default=Path(FILE_NAME), show_default=True, help="The lock file.")
@click.option("--check", "checks", is_flag=True, help="Write nothing; say what differs from the lock file, with exit status 4.")
@FORMAT_OPTION
def command(output_file: Path, checks: bool, output: str) -> None:
    """Pin the installed plugins: type, distribution, version and digest of its files."""
    if checks:
        _check(output_file, output)
        return
    candidates, hook_objects = discover(), discover_hook_objects()
    lock = lock_of(candidates, hook_objects)
    try:
        write_given(output_file, lock.render())
    except OSError as error:
        click.echo(f"error: the lock file {output_file} cannot be written: {error.strerror}", err=True)
        raise SystemExit(ExitCode.FAILED) from None
    # What is wrong already would be refused by `serve --locked`, and only where a configuration uses it.
    click.echo(render_text(LockCheck(lock).differences(candidates, hook_objects), colour=wants_colour(sys.stderr)), nl=False, err=True)
    pinned = {plugin.distribution for plugin in (*lock.plugins, *lock.hooks)}
    summary = f"{output_file}: {len(lock.plugins)} plugin types and {len(lock.hooks)} hook objects of {len(pinned)} distributions\n"
    click.echo(lock.render() if output == "json" else summary, nl=False)


def _check(file: Path, output: str) -> None:
    found = _differences(file)
    if output == "json":
        click.echo(render_json(found))
    elif found:
        click.echo(render_text(found, colour=wants_colour(sys.stderr)), nl=False, err=True)
    else:
        click.echo(f"what is installed is as {file} says")
    if found:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


def _differences(file: Path) -> tuple[Diagnostic, ...]:
    lock = load_lock(file)
    return (lock,) if isinstance(lock, Diagnostic) else LockCheck(lock).differences(discover(), discover_hook_objects())
