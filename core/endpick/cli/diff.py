"""`endpick diff`: compares the plans of two configurations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
from pydantic import Field

from endpick.cli.console import ENDPOINTS_OPTION, FORMAT_OPTION, json_text, plan_or_exit
from endpick.cli.output import Output
from endpick.diagnostics import ExitCode
from endpick.engine.changes import Change, ChangeKind, changes, plan_hash


class ComparedPlan(Output):
    """One side of `endpick diff`."""

    config: str = Field(description="Name of the configuration file.")
    hash: str = Field(description="Equal for plans that do the same.")


class ChangeOutput(Output):
    """One difference between two plans."""

    kind: ChangeKind
    subject: str = Field(description="Instance, profile, role or section.")
    name: str = Field(description="Of a parameter or setting; empty if the subject says it all.")
    profile: str = Field(description="The scheduling profile, if the change is in one.")
    old: str | None = Field(description="Null if the subject was added. Secrets are masked.")
    new: str | None = Field(description="Null if the subject was removed.")
    routes: bool = Field(description="True if requests may go to other endpoints.")
    text: str = Field(description="The change as a sentence.")


class DiffOutput(Output):
    """Output of `endpick diff`."""

    old: ComparedPlan
    new: ComparedPlan
    changes: list[ChangeOutput] = Field(description="Changes of routing first.")


OUTPUTS = {"diff": DiffOutput}


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
    before, after = (plan_or_exit(argument, as_json=output == "json", endpoints_file=endpoints_file) for argument in (old, new))
    found = changes(before, after)
    if output == "json":
        sides = [ComparedPlan(config=plan.config.path, hash=plan_hash(plan)) for plan in (before, after)]
        shown = [ChangeOutput(**asdict(change), text=str(change)) for change in found]
        click.echo(json_text(DiffOutput(old=sides[0], new=sides[1], changes=shown)), nl=False)
    elif found:
        click.echo(_section("routing", (change for change in found if change.routes)), nl=False)
        click.echo(_section("other", (change for change in found if not change.routes)), nl=False)
    else:
        click.echo(f"{old} and {new} do the same")
    sys.exit(ExitCode.DIFFERENT if found else ExitCode.OK)


def _section(title: str, found: Iterable[Change]) -> str:
    lines = "".join(f"  {change}\n" for change in found)
    return f"{title}\n{lines}" if lines else ""
