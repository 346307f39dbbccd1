"""What the verbs have in common: reading a configuration, printing what is wrong with it, tables and JSON.

Functions import what they need: `endpick list` prints a table and must not pay for planning.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.host.planning.plan import Plan

STANDARD_INPUT = "-"


def read(argument: str | None) -> LoadedConfig:
    """The configuration an argument names: a file, `-` for standard input, or the built-in default for None."""
    from endpick.config import load_config
    from endpick.config.source import MAX_BYTES

    if argument == STANDARD_INPUT:
        return load_config(text=sys.stdin.buffer.read(MAX_BYTES + 1), name="<stdin>")
    return load_config(argument)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print what may hold names that a user, a file or a package chose: what would command a terminal is shown as an escape."""
    from endpick.diagnostics.text import printable

    click.echo("\n".join(map(printable, text.split("\n"))), err=err, nl=nl)


def print_diagnostics(diagnostics: Iterable[Diagnostic], configs: Sequence[LoadedConfig]) -> None:
    """On standard error, with the lines they are about."""
    from endpick.diagnostics import render_text, wants_colour

    sources = {loaded.path: loaded.source.text for loaded in configs}
    click.echo(render_text(diagnostics, sources, colour=wants_colour(sys.stderr)), err=True, nl=False)


ENDPOINTS_OPTION = click.option(
    "--endpoints",
    "endpoints_file",
    type=click.Path(path_type=Path),
    help="Discover the endpoints of this file, if CONFIG names no discovery.",
)


def plan_or_exit(argument: str | None, *, as_json: bool, endpoints_file: Path | None = None) -> Plan:
    """The plan of a configuration, with its warnings on standard error.

    Without one the process ends, with every reason on standard error, or as JSON on standard output.
    """
    from endpick.diagnostics import exit_code_of, render_json
    from endpick.host.discovery import discover
    from endpick.host.planning.planner import make_plan

    loaded = read(argument)
    outcome = make_plan(loaded, discover(), endpoints_file=endpoints_file)
    if outcome.plan is None and as_json:
        click.echo(render_json(outcome.diagnostics), nl=False)
    else:
        print_diagnostics(outcome.diagnostics, [loaded])
    if outcome.plan is None:
        sys.exit(exit_code_of(outcome.diagnostics))
    return outcome.plan


FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For people, or for programs."
)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under headers in aligned columns, two spaces apart; the last column is not padded. Ends with a line break.

    What would command a terminal is shown as an escape: packages choose their names.
    """
    from endpick.diagnostics.text import printable

    lines = [tuple(headers), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)


def json_text(document: object) -> str:
    """JSON for programs: the same document always gives the same bytes."""
    from endpick.diagnostics.machine_formats import shown_json

    return shown_json(json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True)) + "\n"


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same in Markdown. Ends with a line break."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
