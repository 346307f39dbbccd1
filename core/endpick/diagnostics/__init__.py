"""Diagnostics: mistakes as values with code, place and help, and their renderers."""

from endpick.diagnostics.codes import Code, ExitCode, Severity
from endpick.diagnostics.model import (
    Diagnostic,
    DocumentPath,
    Label,
    PluginReference,
    Span,
    did_you_mean,
    exit_code_of,
    has_errors,
    sort_diagnostics,
    suggest,
)
from endpick.diagnostics.render import printable, render_github, render_json, render_text, wants_colour

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
    "printable",
    "render_github",
    "render_json",
    "render_text",
    "sort_diagnostics",
    "suggest",
    "wants_colour",
)
