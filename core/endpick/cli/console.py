"""Shared by the verbs: reads configurations, and prints diagnostics, tables and JSON."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from endpick.config import LoadedConfig
    from endpick.diagnostics import Diagnostic
    from endpick.host.planning.plan import Plan

STANDARD_INPUT = "-"


def read(argument: str | None, gates: tuple[str, ...] = ()) -> LoadedConfig:
    """Load a file, `-` for standard input, or the built-in default; `gates` override the document's."""
    from endpick.config import load_config
    from endpick.config.yaml_nodes import MAX_BYTES

    if argument == STANDARD_INPUT:
        return load_config(text=sys.stdin.buffer.read(MAX_BYTES + 1), name="<stdin>", gates=gates)
    return load_config(argument, gates=gates)


def print_diagnostics(diagnostics: Iterable[Diagnostic], configs: Sequence[LoadedConfig]) -> None:
    """Print diagnostics on standard error."""
    from endpick.diagnostics import render_text, wants_colour

    sources = {loaded.path: loaded.source.text for loaded in configs}
    click.echo(render_text(diagnostics, sources, colour=wants_colour(sys.stderr)), err=True, nl=False)


ENDPOINTS_OPTION = click.option(
    "--endpoints",
    "endpoints_file",
    type=click.Path(path_type=Path),
    help="File with the endpoints, if CONFIG names no discovery.",
)


def plan_or_exit(argument: str | None, *, as_json: bool, endpoints_file: Path | None = None) -> Plan:
    """Plan a configuration and print its diagnostics; without a plan, end the process (`as_json`: diagnostics on standard output)."""
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


def complete_types(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For shells: the installed plugin types. Imports no plugin."""
    from endpick.host.discovery import discover

    return [candidate.type for candidate in discover() if candidate.type.startswith(incomplete)]


FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


_GAP = 2
_AT_HYPHENS = r"\s+|(?<=-)"
_BREAKS = (r"(?!)", r"\s+", _AT_HYPHENS, r"\s+|(?<=.)")  # headers are wrapped first, then cells: between words, at hyphens, anywhere


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0) -> str:
    """Rows in aligned columns, wrapped within the terminal's width; 80 columns, or $COLUMNS, without a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from endpick.diagnostics import wants_colour

    lines = [tuple(headers), *map(tuple, rows)]
    columns = shutil.get_terminal_size().columns - indent
    widths = _widths(list(zip(*lines, strict=True)), columns - _GAP * (len(headers) - 1))
    shown = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for header, width in zip(headers, widths, strict=True):
        shown.add_column(Text(textwrap.fill(header, width)), width=width, overflow="fold")
    for line in lines[1:]:
        shown.add_row(*(Text(textwrap.fill(cell, width)) for cell, width in zip(line, widths, strict=True)))
    colour = wants_colour(sys.stdout)
    console = Console(file=io.StringIO(), width=columns + _GAP, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as printed:
        console.print(shown)
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in printed.get().splitlines())


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """Shrinks the widest column first, as long as cells, then words, then parts of names stay whole."""
    widths = [max(1, *map(len, column)) for column in columns]
    for breaks in _BREAKS:
        whole = [max(_longest_part(_AT_HYPHENS, column[:1]), _longest_part(breaks, column[1:])) for column in columns]
        while sum(widths) > available:
            wide = [index for index, width in enumerate(widths) if width > whole[index]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _longest_part(breaks: str, cells: Iterable[str]) -> int:
    return max((len(part) for cell in cells for part in re.split(breaks, cell)), default=1)


def json_text(document: object) -> str:
    """Indented JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
