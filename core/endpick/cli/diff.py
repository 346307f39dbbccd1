"""`endpick diff`: what another configuration would do differently."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from endpick.cli.console import ENDPOINTS_OPTION, FORMAT_OPTION, json_text, plan_or_exit
from endpick.diagnostics import ExitCode
from endpick.host.planning.changes import Change, changes, plan_hash
from endpick.host.planning.plan import Plan


@click.command("diff", short_help="Show what another configuration would do differently.")
@click.argument("old")
@click.argument("new")
@ENDPOINTS_OPTION
@FORMAT_OPTION
def command(old: str, new: str, endpoints_file: Path | None, output: str) -> None:
    """Show what NEW does differently from OLD: first changes of routing, then the rest. Either may be `-`, standard input.

    Defaults count with their values; comments and layout do not count. Secrets are masked.

    Exit code 0: both do the same; 6: they differ; 3 or 4: one of them has no plan, as for `validate`.
    """
    before, after = (plan_or_exit(one, as_json=output == "json", endpoints_file=endpoints_file) for one in (old, new))
    found = changes(before, after)
    if output == "json":
        document = {"old": _plan(before), "new": _plan(after), "changes": [facts(change) for change in found]}
        click.echo(json_text(document), nl=False)
    elif found:
        click.echo(_section("routing", (one for one in found if one.routes)), nl=False)
        click.echo(_section("other", (one for one in found if not one.routes)), nl=False)
    else:
        click.echo(f"{old} and {new} do the same")
    sys.exit(ExitCode.DIFFERENT if found else ExitCode.OK)


def _plan(plan: Plan) -> dict[str, str]:
    return {"config": plan.config.path, "hash": plan_hash(plan)}


def facts(change: Change) -> dict[str, object]:
    """A change as plain data."""
    return {**asdict(change), "text": str(change)}


def _section(title: str, found: Iterable[Change]) -> str:
    lines = "".join(f"  {change}\n" for change in found)
    return f"{title}\n{lines}" if lines else ""
