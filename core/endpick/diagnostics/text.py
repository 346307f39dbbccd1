"""Diagnostics as text for people: the line, a caret under the mistake, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TextIO

from endpick.diagnostics.cap import MAX_SHOWN, cap
from endpick.diagnostics.codes import Severity
from endpick.diagnostics.excerpt import Mark, excerpt, printable
from endpick.diagnostics.lines import Lines
from endpick.diagnostics.model import Diagnostic

_COLOURS = {
    Severity.ERROR: "1;31",
    Severity.WARNING: "1;33",
    Severity.NOTE: "1;36",
}
_BOLD = "1"
_GUTTER = "1;34"


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Only a terminal gets colour, and only while nobody asked for none (`NO_COLOR`, `TERM=dumb`)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def render_text(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, str] | None = None,
    *,
    colour: bool = False,
    limit: int = MAX_SHOWN,
) -> str:
    """Diagnostics in document order, separated by blank lines; beyond `limit` only their number is given.

    `sources` maps the file names of spans to the text of those files; without it no source lines are shown. The result
    ends with a line break unless it is empty.
    """
    shown, omitted = cap(diagnostics, limit)
    texts = {file: Lines(text) for file, text in (sources or {}).items()}
    blocks = ["\n".join(_Block(diagnostic, texts, colour).rows()) for diagnostic in shown]
    if omitted:
        blocks.append(f"... and {omitted} more; repair these first")
    return "\n\n".join(blocks) + "\n" if blocks else ""


class _Block:
    """The rows of one diagnostic, aligned on the width of its largest line number."""

    def __init__(self, diagnostic: Diagnostic, texts: Mapping[str, Lines], colour: bool) -> None:
        self.diagnostic = diagnostic
        self.texts = texts
        self.colour = colour
        self.marks = _marks(diagnostic)
        self.gutter = max((len(str(mark.span.line)) for mark in self.marks), default=1) + 1

    def rows(self) -> Iterator[str]:
        diagnostic = self.diagnostic
        severity = self._paint(f"{diagnostic.severity}[{diagnostic.code}]", _COLOURS[diagnostic.severity])
        yield f"{severity}{self._paint(f': {printable(diagnostic.message)}', _BOLD)}"
        for file, marks in groupby(self.marks, key=lambda mark: mark.span.file):
            yield from self._file(file, list(marks))
        for word, text in self._footer():
            first, *rest = text.splitlines() or [""]
            lead = f"{' ' * self.gutter} {self._paint('=', _GUTTER)} {self._paint(word, _BOLD)}: "
            yield f"{lead}{printable(first)}".rstrip()
            yield from (f"{' ' * (self.gutter + len(word) + 5)}{printable(line)}".rstrip() for line in rest)

    def _file(self, file: str, marks: list[Mark]) -> Iterator[str]:
        lines = self.texts.get(file)
        if lines is None or not lines.text:
            yield from (self._place(mark, annotated=True) for mark in marks)
            return
        yield self._place(marks[0])
        yield self._bar("")
        for row in excerpt(lines, marks):
            if row.number is not None:
                number = self._paint(f"{row.number:>{self.gutter}} |", _GUTTER)
                yield f"{number} {row.text}".rstrip()
            elif row.mark is not None:
                colour = _COLOURS[self.diagnostic.severity] if row.mark.primary else _GUTTER
                yield self._bar(self._paint_after_indent(row.text, colour))
            else:
                yield self._paint(f"{row.text:>{self.gutter + 2}}", _GUTTER)

    def _place(self, mark: Mark, *, annotated: bool = False) -> str:
        arrow = self._paint("-->" if mark.primary else ":::", _GUTTER)
        message = f": {mark.message}" if annotated and mark.message else ""
        return f"{' ' * self.gutter}{arrow} {printable(f'{mark.span}{message}')}"

    def _footer(self) -> Iterator[tuple[str, str]]:
        diagnostic = self.diagnostic
        if diagnostic.help:
            yield "help", diagnostic.help
        for note in diagnostic.notes:
            yield "note", note
        if diagnostic.plugin is not None:
            yield "plugin", str(diagnostic.plugin)
        yield "docs", f"endpick explain {diagnostic.code}"

    def _bar(self, text: str) -> str:
        return f"{' ' * self.gutter} {self._paint('|', _GUTTER)} {text}".rstrip()

    def _paint_after_indent(self, text: str, colour: str) -> str:
        drawn = text.lstrip(" ")
        return f"{' ' * (len(text) - len(drawn))}{self._paint(drawn, colour)}"

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour else text


def _marks(diagnostic: Diagnostic) -> list[Mark]:
    """The file of the mistake first, then other files in order of appearance."""
    if diagnostic.span is None:
        primary: list[Mark] = []
        files: dict[str, None] = {}
    else:
        primary = [Mark(diagnostic.span, diagnostic.annotation or "", primary=True)]
        files = {diagnostic.span.file: None}
    secondary = [Mark(label.span, label.message, primary=False) for label in diagnostic.labels]
    files.update(dict.fromkeys(mark.span.file for mark in secondary))
    return [mark for file in files for mark in (*primary, *secondary) if mark.span.file == file]
