"""What the verbs that take a CONFIG have in common: reading it, and printing what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from endpick.config import LoadedConfig, load_config
from endpick.diagnostics import Diagnostic, exit_code_of, render_json, render_text, wants_colour
from endpick.planning.plan import Plan
from endpick.planning.planner import make_plan
from endpick.plugins.discovery import discover

STANDARD_INPUT = "-"


def read(argument: str | None) -> LoadedConfig:
    """The configuration an argument names: a file, `-` for standard input, or the built-in default for None."""
    if argument == STANDARD_INPUT:
        return load_config(text=sys.stdin.buffer.read(), name="<stdin>")
    return load_config(argument)


def print_diagnostics(diagnostics: Iterable[Diagnostic], configs: Sequence[LoadedConfig]) -> None:
    """On standard error, with the lines they are about."""
    sources = {loaded.path: loaded.source.text for loaded in configs}
    click.echo(render_text(diagnostics, sources, colour=wants_colour(sys.stderr)), err=True, nl=False)


def plan_or_exit(argument: str | None, *, as_json: bool) -> Plan:
    """The plan of a configuration, with its warnings on standard error.

    Without one the process ends, with every reason on standard error, or as JSON on standard output.
    """
    loaded = read(argument)
    outcome = make_plan(loaded, discover())
    if outcome.plan is None and as_json:
        click.echo(render_json(outcome.diagnostics), nl=False)
    else:
        print_diagnostics(outcome.diagnostics, [loaded])
    if outcome.plan is None:
        sys.exit(exit_code_of(outcome.diagnostics))
    return outcome.plan
