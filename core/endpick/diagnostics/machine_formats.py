"""Renders diagnostics as JSON (`schemas/diagnostics.v1.json`) and as GitHub workflow commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from endpick.diagnostics.codes import Severity
from endpick.diagnostics.model import Diagnostic, Span, sort_diagnostics
from endpick.diagnostics.text import printable

VERSION = 1


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """All diagnostics as one JSON document."""
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
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1].replace("\x7f", "\\u007f") for each in text)


def as_json(diagnostic: Diagnostic) -> dict[str, object]:
    """One diagnostic as plain data."""
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
    """One `::error …::` line for each diagnostic, in document order."""
    return "".join(f"{printable(_command(diagnostic))}\n" for diagnostic in sort_diagnostics(diagnostics))


def _command(diagnostic: Diagnostic) -> str:
    properties = {"title": str(diagnostic.code)}
    if diagnostic.span is not None:
        span = diagnostic.span
        place = {"file": span.file, "line": str(span.line), "col": str(span.column), "endLine": str(span.end_line)}
        # The end column is inclusive for GitHub and must not precede the start.
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
