"""`endpick graph`: draws the data flow between plugins."""

from __future__ import annotations

import sys
from typing import Literal

import click

from endpick.cli.console import json_text, plan_or_exit, print_diagnostics
from endpick.diagnostics import Code, Diagnostic, ExitCode
from endpick.host.planning.document import Picture, dot, mermaid, picture_of


@click.command("graph", short_help="Draw which plugin produces data for which other.")
@click.argument("config", required=False)
@click.option("--format", "output", type=click.Choice(["mermaid", "dot", "json", "svg"]), default="mermaid", show_default=True)
def command(config: str | None, output: Literal["mermaid", "dot", "json", "svg"]) -> None:
    """Draw the data flow of CONFIG: sources, collectors, producers and their readers. Dashed arrows are optional.

    `-` reads standard input. Without CONFIG, the built-in default is drawn.
    """
    picture = picture_of(plan_or_exit(config, as_json=output == "json"))
    click.echo(_drawn(picture, output), nl=False)


def _drawn(picture: Picture, output: Literal["mermaid", "dot", "json", "svg"]) -> str:
    match output:
        case "mermaid":
            return mermaid(picture)
        case "dot":
            return dot(picture)
        case "json":
            return json_text(picture.model_dump(mode="json", by_alias=True))
        case "svg":
            return _svg(picture)


def _svg(picture: Picture) -> str:
    try:
        from endpick.host.planning.svg import svg
    except ModuleNotFoundError as error:
        missing = Diagnostic(
            Code.E0804,
            f"drawing SVG needs the package '{error.name}'",
            help="run `pip install 'endpick[graph]'`, or choose another --format",
        )
        print_diagnostics([missing], [])
        sys.exit(ExitCode.FAILED)
    return svg(picture)
