"""Tables of text that fit the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from endpick.diagnostics.render import wants_colour

_GAP = 2
_AT_HYPHENS = r"\s+|(?<=-)"
_BREAKS = (r"(?!)", r"\s+", _AT_HYPHENS, r"\s+|(?<=.)")  # headers are wrapped first, then cells: between words, at hyphens, anywhere


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0, *, stream: TextIO | None = None) -> str:
    """Format rows in aligned columns, wrapped to the terminal's width; else to $COLUMNS or 80."""
    lines = [tuple(headers), *map(tuple, rows)]
    columns = shutil.get_terminal_size().columns - indent
    widths = _widths(list(zip(*lines, strict=True)), columns - _GAP * (len(headers) - 1))
    heading, *cells = [[textwrap.wrap(cell, width) or [""] for cell, width in zip(line, widths, strict=True)] for line in lines]
    height = max(map(len, heading))
    bold = ("\x1b[1m", "\x1b[0m") if wants_colour(stream or sys.stdout) else ("", "")
    shown = [line.join(bold) for line in _lines([[""] * (height - len(cell)) + cell for cell in heading], widths)]
    shown += [line for row in cells for line in _lines(row, widths)]
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in shown)


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """The lines of a row, whose cells may have several."""
    for parts in zip_longest(*cells, fillvalue=""):
        yield (" " * _GAP).join(part.ljust(width) for part, width in zip(parts, widths, strict=True))


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
