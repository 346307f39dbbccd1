"""`endpick graph`: who produces which data for whom, as a drawing or as text that others draw."""

from __future__ import annotations

import sys
from typing import Literal

import click

from endpick.cli.console import json_text, plan_or_exit, print_diagnostics, say
from endpick.diagnostics import Code, Diagnostic, ExitCode
from endpick.host.planning.data_flow import Picture, dot, mermaid, picture_of


@click.command("graph", short_help="Draw who produces which data for whom.")
@click.argument("config", required=False)
@click.option("--format", "output", type=click.Choice(["mermaid", "dot", "json", "svg"]), default="mermaid", show_default=True)
def command(config: str | None, output: Literal["mermaid", "dot", "json", "svg"]) -> None:
    """Draw the data flow of CONFIG: sources, collectors, producers and who reads from them. Dashed arrows are optional.

    `-` reads standard input; without CONFIG the graph is that of the built-in default.
    """
    picture = picture_of(plan_or_exit(config, as_json=output == "json"))
    say(_drawn(picture, output), nl=False)


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
