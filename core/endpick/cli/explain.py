"""`endpick explain CODE`: meaning, example and repair of a diagnostic."""

from __future__ import annotations

import json
from typing import Literal

import click

from endpick.diagnostics import Code, did_you_mean
from endpick.diagnostics.explain import explanation


@click.command("explain", short_help="Explain a diagnostic code such as E0301.")
@click.argument("code", required=False)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def command(code: str | None, output: Literal["text", "json"]) -> None:
    """Explain a diagnostic CODE such as E0301; without one, list all codes."""
    codes = tuple(Code) if code is None else (_find(code),)
    if output == "json":
        click.echo(json.dumps([_as_json(found) for found in codes], indent=2, ensure_ascii=False))
    elif code is None:
        click.echo("\n".join(f"{found.name}  {found.title}" for found in codes))
    else:
        click.echo(explanation(codes[0]), nl=False)


def _find(name: str) -> Code:
    known = {code.name: code for code in Code}
    found = known.get(name.strip().upper())
    if found is None:
        hint = did_you_mean(name.strip().upper(), known) or "'endpick explain' lists all codes"
        message = f"'{name}' is not a diagnostic code; {hint}"
        raise click.BadParameter(message, param_hint="CODE")
    return found


def _as_json(code: Code) -> dict[str, object]:
    return {
        "code": code.name,
        "severity": code.severity.value,
        "title": code.title,
        "exitCode": int(code.exit_code),
        "explanation": explanation(code),
    }
