"""Renders diagnostics as text, as JSON (`schemas/diagnostics.v1.json`) and as GitHub workflow commands."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TextIO

from endpick.diagnostics.codes import Severity
from endpick.diagnostics.model import MAX_SHOWN, Diagnostic, Lines, Span, cap, sort_diagnostics

_COLOURS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
_BOLD = "1"
_GUTTER = "1;34"


def render_text(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None, *, colour: bool = False, limit: int = MAX_SHOWN
) -> str:
    """Render text in document order; source lines are shown for files in `sources`, texts by name."""
    shown, omitted = cap(diagnostics, limit)
    texts = {file: Lines(text) for file, text in (sources or {}).items()}
    blocks = ["\n".join(_Block(diagnostic, texts, colour).rows()) for diagnostic in shown]
    if omitted:
        blocks.append(f"... and {omitted} more; repair these first")
    return "\n\n".join(blocks) + "\n" if blocks else ""


class _Block:
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
    if diagnostic.span is None:
        primary: list[Mark] = []
        files: dict[str, None] = {}
    else:
        primary = [Mark(diagnostic.span, diagnostic.annotation or "", primary=True)]
        files = {diagnostic.span.file: None}
    secondary = [Mark(label.span, label.message, primary=False) for label in diagnostic.labels]
    files.update(dict.fromkeys(mark.span.file for mark in secondary))
    return [mark for file in files for mark in (*primary, *secondary) if mark.span.file == file]


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to colour output: on a terminal, unless `NO_COLOR` or `TERM=dumb` is set."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


CONTEXT_LINES = 2
MAX_LINE_LENGTH = 140
_TAB = "    "


@dataclass(frozen=True, slots=True)
class Mark:
    """An underlined place: the primary one with carets and context lines, others with dashes."""

    span: Span
    message: str
    primary: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A line of an excerpt: numbered source, a mark, or a gap."""

    number: int | None
    text: str
    mark: Mark | None = None


def excerpt(lines: Lines, marks: Sequence[Mark]) -> Iterator[Row]:
    """Yield the rows for marks in one file; a multi-line mark shows its first line only."""
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


def _context(lines: Lines, marks: Sequence[Mark]) -> set[int]:
    before = {mark.span.line - back for mark in marks if mark.primary for back in range(1, CONTEXT_LINES + 1)}
    return {number for number in before if number >= 1 and lines.line(number).strip()}


def _window(source: str, marks: Sequence[Mark]) -> int:
    """The first shown column of a long line; keeps the first mark visible."""
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


def printable(text: str) -> str:
    """Escape characters that would control a terminal."""
    return "".join(_printable_character(character) for character in text)


def _printable_character(character: str) -> str:
    if character == "\t":
        return _TAB
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}:
        return f"\\u{ord(character):04x}"
    return character


VERSION = 1


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """Render all diagnostics as one JSON document."""
    ordered = sort_diagnostics(diagnostics)
    document = {
        "version": VERSION,
        "errors": sum(diagnostic.severity is Severity.ERROR for diagnostic in ordered),
        "warnings": sum(diagnostic.severity is Severity.WARNING for diagnostic in ordered),
        "diagnostics": [as_json(diagnostic) for diagnostic in ordered],
    }
    return shown_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def shown_json(text: str) -> str:
    """Escape control characters and surrogates in JSON text."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1].replace("\x7f", "\\u007f") for char in text)


def as_json(diagnostic: Diagnostic) -> dict[str, object]:
    """Convert a diagnostic to plain data, as in the schema."""
    return {
        "code": diagnostic.code.name,
        "severity": diagnostic.severity.value,
        "title": diagnostic.code.title,
        "message": diagnostic.message,
        "span": None if diagnostic.span is None else _span(diagnostic.span),
        "annotation": diagnostic.annotation,
        "labels": [{"span": _span(label.span), "message": label.message} for label in diagnostic.labels],
        "help": diagnostic.help,
        "notes": list(diagnostic.notes),
        "plugin": None if diagnostic.plugin is None else asdict(diagnostic.plugin),
        "path": list(diagnostic.path),
    }


def _span(span: Span) -> dict[str, object]:
    return {"file": span.file, "line": span.line, "column": span.column, "endLine": span.end_line, "endColumn": span.end_column}


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """Render an `::error …::` line for each diagnostic, in document order."""
    return "".join(f"{printable(_command(diagnostic))}\n" for diagnostic in sort_diagnostics(diagnostics))


def _command(diagnostic: Diagnostic) -> str:
    properties = {"title": str(diagnostic.code)}
    if diagnostic.span is not None:
        span = diagnostic.span
        place = {"file": span.file, "line": str(span.line), "col": str(span.column), "endLine": str(span.end_line)}
        # GitHub's end column is inclusive and must not precede the start.
        place["endColumn"] = str(max(span.end_column - 1, span.column if span.end_line == span.line else 1))
        properties = place | properties
    listed = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return printable(f"::{_COMMANDS[diagnostic.severity]} {listed}::{_escape(_message(diagnostic))}")


def _message(diagnostic: Diagnostic) -> str:
    parts = [diagnostic.message]
    if diagnostic.help:
        parts.append(f"help: {diagnostic.help}")
    parts.extend(f"{label.span}: {label.message}" for label in diagnostic.labels)
    parts.extend(f"note: {note}" for note in diagnostic.notes)
    return "\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


_SPAN = {
    "type": "object",
    "description": "Lines and columns count from 1, columns in code points; the end column is one past the last.",
    "properties": {
        "file": {"type": "string"},
        "line": {"type": "integer", "minimum": 1},
        "column": {"type": "integer", "minimum": 1},
        "endLine": {"type": "integer", "minimum": 1},
        "endColumn": {"type": "integer", "minimum": 1},
    },
    "required": ["file", "line", "column", "endLine", "endColumn"],
    "additionalProperties": False,
}
_NULLABLE_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}

SCHEMA: Mapping[str, object] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "endpick diagnostics",
    "description": "Output of `--format json`: every mistake in document order.",
    "type": "object",
    "properties": {
        "version": {"const": VERSION},
        "errors": _COUNT,
        "warnings": _COUNT,
        "diagnostics": {"type": "array", "items": {"$ref": "#/$defs/diagnostic"}},
    },
    "required": ["version", "errors", "warnings", "diagnostics"],
    "additionalProperties": False,
    "$defs": {
        "span": _SPAN,
        "diagnostic": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "pattern": "^[EWN][0-9]{4}$"},
                "severity": {"enum": [severity.value for severity in Severity]},
                "title": {"type": "string", "description": "Title of the code."},
                "message": {"type": "string"},
                "span": {"anyOf": [{"$ref": "#/$defs/span"}, {"type": "null"}]},
                "annotation": _NULLABLE_TEXT,
                "labels": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"span": {"$ref": "#/$defs/span"}, "message": {"type": "string"}},
                        "required": ["span", "message"],
                        "additionalProperties": False,
                    },
                },
                "help": _NULLABLE_TEXT,
                "notes": {"type": "array", "items": {"type": "string"}},
                "plugin": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "type": {"type": "string"},
                                "instance": _NULLABLE_TEXT,
                                "distribution": _NULLABLE_TEXT,
                                "version": _NULLABLE_TEXT,
                            },
                            "required": ["type", "instance", "distribution", "version"],
                            "additionalProperties": False,
                        },
                        {"type": "null"},
                    ]
                },
                "path": {
                    "type": "array",
                    "description": "Keys and indices from the root of the document.",
                    "items": {"type": ["string", "integer"]},
                },
            },
            "required": ["code", "severity", "title", "message", "span", "annotation", "labels", "help", "notes", "plugin", "path"],
            "additionalProperties": False,
        },
    },
}
