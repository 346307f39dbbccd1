"""Tables and JSON as every verb prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click

FORMAT_OPTION = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For people, or for programs."
)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under headers in aligned columns, two spaces apart; the last column is not padded. Ends with a line break."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)


def json_text(document: object) -> str:
    """JSON for programs: the same document always gives the same bytes."""
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same in Markdown. Ends with a line break."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
