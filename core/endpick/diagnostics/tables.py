"""Tables of text that fit the terminal."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from endpick.diagnostics.render import wants_colour

_GAP = 2
_AT_HYPHENS = r"\s+|(?<=-)"
_BREAKS = (r"(?!)", r"\s+", _AT_HYPHENS, r"\s+|(?<=.)")  # headers are wrapped first, then cells: between words, at hyphens, anywhere


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0, *, stream: TextIO | None = None) -> str:
    """Rows in aligned columns, wrapped within the terminal's width; 80 columns, or $COLUMNS, without a terminal."""
    from rich.console import Console  # noqa: PLC0415 - `endpick --version` needs no table
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines = [tuple(headers), *map(tuple, rows)]
    columns = shutil.get_terminal_size().columns - indent
    widths = _widths(list(zip(*lines, strict=True)), columns - _GAP * (len(headers) - 1))
    shown = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for header, width in zip(headers, widths, strict=True):
        shown.add_column(Text(textwrap.fill(header, width)), width=width, overflow="fold")
    for line in lines[1:]:
        shown.add_row(*(Text(textwrap.fill(cell, width)) for cell, width in zip(line, widths, strict=True)))
    colour = wants_colour(stream or sys.stdout)
    console = Console(file=io.StringIO(), width=columns + _GAP, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as printed:
        console.print(shown)
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in printed.get().splitlines())


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """Shrinks the widest column first; cells, words and names stay whole as long as possible."""
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
