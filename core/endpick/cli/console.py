"""Shared by the verbs: reads configurations, and prints diagnostics, tables and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

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


def fail(message: str) -> NoReturn:
    """Print an error on standard error, and exit with `ExitCode.FAILED`."""
    from endpick.diagnostics import ExitCode

    click.echo(f"error: {message}", err=True)
    sys.exit(ExitCode.FAILED)


ENDPOINTS_OPTION = click.option(
    "--endpoints",
    "endpoints_file",
    type=click.Path(path_type=Path),
    help="File with the endpoints, if CONFIG names no discovery.",
)


def plan_or_exit(argument: str | None, *, as_json: bool, endpoints_file: Path | None = None) -> Plan:
    """Plan a configuration and print its diagnostics; exits without a plan.

    Diagnostics go to standard output if `as_json`, in the form of `endpick validate`.
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


def complete_types(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return installed plugin types for shell completion, without importing plugins."""
    from endpick.host.discovery import discover

    return [candidate.type for candidate in discover() if candidate.type.startswith(incomplete)]


FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


def shown_destinations(addresses: Sequence[str]) -> str:
    """Return the picked address, and those that the gateway tries if it is unreachable."""
    pick, *fallbacks = addresses
    return f"{pick}, with {', '.join(fallbacks)} as fallback" if fallbacks else pick


def json_text(document: object) -> str:
    """Format a document as indented JSON; it may contain pydantic models."""
    return json.dumps(document, default=_plain, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _plain(model: BaseModel) -> object:
    return model.model_dump(mode="json", by_alias=True)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows as a Markdown table; `|` is escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
