"""Mistakes as values: what a diagnostic is, its code, and how it is shown."""

from endpick.diagnostics.codes import Code, Severity
from endpick.diagnostics.exit import ExitCode
from endpick.diagnostics.github import render_github
from endpick.diagnostics.json import render_json
from endpick.diagnostics.model import (
    Diagnostic,
    DocumentPath,
    Label,
    PluginReference,
    Span,
    exit_code_of,
    has_errors,
    sort_diagnostics,
)
from endpick.diagnostics.suggestion import did_you_mean, suggest
from endpick.diagnostics.text import render_text, wants_colour

__all__ = (
    "Code",
    "Diagnostic",
    "DocumentPath",
    "ExitCode",
    "Label",
    "PluginReference",
    "Severity",
    "Span",
    "did_you_mean",
    "exit_code_of",
    "has_errors",
    "render_github",
    "render_json",
    "render_text",
    "sort_diagnostics",
    "suggest",
    "wants_colour",
)
