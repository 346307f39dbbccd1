"""Diagnostics: mistakes as values, each with a code, a place and a help line, and how they are shown.

- `model`: what is a diagnostic, in which order are they shown, and which name did the author mean?
- `codes`: which mistakes are there, how severe is each, and with which exit status does a command end?
- `text`: how does an operator see diagnostics on a terminal?
- `machine_formats`: how does a program read them, as JSON or in a GitHub workflow?
- `explain/`: what does `endpick explain CODE` print? One page per code.

`cli`, `serve`, `testing`, `planning`, `plugins` and `config` call it. It imports no other package of endpick.
"""

from endpick.diagnostics.codes import Code, ExitCode, Severity
from endpick.diagnostics.machine_formats import render_github, render_json
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
from endpick.diagnostics.text import printable, render_text, wants_colour

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
