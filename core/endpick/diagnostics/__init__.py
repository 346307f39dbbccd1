"""Mistakes as values: what a diagnostic is, its code, and how it is shown."""

from endpick.diagnostics.codes import Code, Severity
from endpick.diagnostics.exit import ExitCode
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

__all__ = (
    "Code",
    "Diagnostic",
    "DocumentPath",
    "ExitCode",
    "Label",
    "PluginReference",
    "Severity",
    "Span",
    "exit_code_of",
    "has_errors",
    "sort_diagnostics",
)
