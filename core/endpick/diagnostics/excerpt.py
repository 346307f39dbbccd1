"""The part of a file that a diagnostic is about, with marks under the places it speaks of."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from endpick.diagnostics.lines import Lines
from endpick.diagnostics.model import Span

CONTEXT_LINES = 2
MAX_LINE_LENGTH = 140
_TAB = "    "


@dataclass(frozen=True, slots=True)
class Mark:
    """One underlined place. The primary one gets carets and some lines of context before it, the others dashes."""

    span: Span
    message: str
    primary: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of an excerpt: numbered source, a mark under it, or a gap (neither)."""

    number: int | None
    text: str
    mark: Mark | None = None


def excerpt(lines: Lines, marks: Sequence[Mark]) -> Iterator[Row]:
    """Rows from top to bottom. All marks must be in the same file; of a mark over several lines only the first is shown."""
    by_line = {number: list(group) for number, group in groupby(sorted(marks, key=lambda mark: mark.span), key=lambda mark: mark.span.line)}
    previous = None
    for number in sorted(set(by_line) | _context(lines, marks)):
        if previous is not None and number > previous + 1:
            yield Row(None, "...")
        previous = number
        source = lines.line(number)
        offset = _window(source, by_line.get(number, ()))
        yield Row(number, _clip(source, offset))
        for mark in by_line.get(number, ()):
            yield Row(None, _underline(source, offset, mark), mark)


def printable(text: str) -> str:
    """Text that cannot move the cursor, hide itself or change its own order on a terminal."""
    return "".join(_printable_character(character) for character in text)


def _printable_character(character: str) -> str:
    if character == "\t":
        return _TAB
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}:
        return f"\\u{ord(character):04x}"
    return character


def _context(lines: Lines, marks: Sequence[Mark]) -> set[int]:
    before = {mark.span.line - back for mark in marks if mark.primary for back in range(1, CONTEXT_LINES + 1)}
    return {number for number in before if number >= 1 and lines.line(number).strip()}


def _window(source: str, marks: Sequence[Mark]) -> int:
    """Where to start showing a long line so that its first mark is seen."""
    if len(source) <= MAX_LINE_LENGTH or not marks:
        return 0
    return max(0, marks[0].span.column - 1 - MAX_LINE_LENGTH // 2)


def _clip(source: str, offset: int) -> str:
    shown = printable(source[offset : offset + MAX_LINE_LENGTH])
    return f"{'…' if offset else ''}{shown}{'…' if len(source) > offset + MAX_LINE_LENGTH else ''}".rstrip()


def _underline(source: str, offset: int, mark: Mark) -> str:
    start = mark.span.column - 1
    end = mark.span.end_column - 1 if mark.span.end_line == mark.span.line else len(source.rstrip())
    end = min(end, offset + MAX_LINE_LENGTH)
    padding = _width(printable(source[offset:start])) + (1 if offset else 0)
    length = max(1, _width(printable(source[start:end])))
    return f"{' ' * padding}{('^' if mark.primary else '-') * length} {printable(mark.message)}".rstrip()


def _width(text: str) -> int:
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
