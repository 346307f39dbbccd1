"""Diagnostics as GitHub workflow commands, so that a pull request shows them beside the line."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.diagnostics.codes import Severity
from endpick.diagnostics.model import Diagnostic, sort_diagnostics

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """One `::error …::` line each, in document order; none is left out, since GitHub has its own limit."""
    return "".join(f"{_command(diagnostic)}\n" for diagnostic in sort_diagnostics(diagnostics))


def _command(diagnostic: Diagnostic) -> str:
    properties = {"title": str(diagnostic.code)}
    if diagnostic.span is not None:
        span = diagnostic.span
        place = {"file": span.file, "line": str(span.line), "col": str(span.column), "endLine": str(span.end_line)}
        # GitHub counts the end column inclusively and refuses one that lies before the start.
        place["endColumn"] = str(max(span.end_column - 1, span.column if span.end_line == span.line else 1))
        properties = place | properties
    listed = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[diagnostic.severity]} {listed}::{_escape(_message(diagnostic))}"


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
