"""A diagnostic: one mistake, where it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from endpick.diagnostics.codes import Code, Severity
from endpick.diagnostics.exit import ExitCode

DocumentPath = tuple[str | int, ...]
"""Where something is in a document: mapping keys and list indices from the root, such as `("plugins", 0, "type")`."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of text. Lines and columns count from 1, columns in code points; the end is one past the last."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def start_of(cls, file: str) -> Span:
        """The place to point at when a file has no better one: its very beginning."""
        return cls(file, 1, 1, 1, 1)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def covers(self, other: Span) -> bool:
        """Whether `other` lies within this span."""
        return (
            self.file == other.file
            and (self.line, self.column) <= (other.line, other.column)
            and (other.end_line, other.end_column) <= (self.end_line, self.end_column)
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that belongs to a diagnostic, and what it has to do with it: "first defined here"."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True)
class PluginReference:
    """The plugin a diagnostic is about, as far as it is known."""

    type: str
    instance: str | None = None
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        name = self.type if self.instance in (None, self.type) else f"{self.instance} ({self.type})"
        return name if self.distribution is None else f"{name} from {self.distribution} {self.version or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, worded for the person who can repair it.

    `message` says what happened, in lower case and without a full stop; `span` where; `help` what to do; `notes` why it
    matters. `span` is None only where there is no file to point into. `annotation` is the short text beside the caret.
    """

    code: Code
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()
    help: str | None = None
    notes: tuple[str, ...] = ()
    plugin: PluginReference | None = None
    path: DocumentPath = ()
    annotation: str | None = None

    @property
    def severity(self) -> Severity:
        """That of its code."""
        return self.code.severity

    @property
    def is_error(self) -> bool:
        """Whether it prevents the start."""
        return self.severity is Severity.ERROR


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of them prevents the start."""
    return any(diagnostic.is_error for diagnostic in diagnostics)


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """In the order of the document, each once; those without a place come last, in the order they were found."""
    return tuple(sorted(dict.fromkeys(diagnostics), key=_place))


def exit_code_of(diagnostics: Iterable[Diagnostic]) -> ExitCode:
    """The exit status of a command that found these: the smallest that an error asks for, OK without errors."""
    return min((diagnostic.code.exit_code for diagnostic in diagnostics if diagnostic.is_error), default=ExitCode.OK)


def _place(diagnostic: Diagnostic) -> tuple[bool, str, int, int, str]:
    span = diagnostic.span
    if span is None:
        return (True, "", 0, 0, "")
    return (False, span.file, span.line, span.column, diagnostic.code.name)
