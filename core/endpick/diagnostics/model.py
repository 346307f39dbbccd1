"""Diagnostics, suggestions and line numbers."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from endpick.diagnostics.codes import Code, ExitCode, Severity

DocumentPath = tuple[str | int, ...]  # keys and indices from the root of a document: `("plugins", 0, "type")`


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, for the person who can repair it.

    Attributes:
        message: Lower case, without a full stop.
        span: None without a file.
        help: The repair.
        annotation: Text next to the caret.
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
        """The severity of the code."""
        return self.code.severity

    @property
    def is_error(self) -> bool:
        """Whether the diagnostic prevents the start."""
        return self.severity is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Label:
    """A secondary place of a diagnostic: "first defined here"."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of text. Lines and columns start at 1, columns count code points; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def start_of(cls, file: str) -> Span:
        """Return the empty span at the start of a file."""
        return cls(file, 1, 1, 1, 1)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class PluginReference:
    """Identifies the plugin that a diagnostic is about."""

    type: str
    instance: str | None = None
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        name = self.type if self.instance in (None, self.type) else f"{self.instance} ({self.type})"
        return name if self.distribution is None else f"{name} from {self.distribution} {self.version or ''}".rstrip()


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Return whether any diagnostic is an error."""
    return any(diagnostic.is_error for diagnostic in diagnostics)


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort diagnostics in document order without duplicates; those without a span come last."""
    return tuple(sorted(dict.fromkeys(diagnostics), key=_place))


def exit_code_of(diagnostics: Iterable[Diagnostic]) -> ExitCode:
    """Return the smallest exit status of all errors; OK without errors."""
    return min((diagnostic.code.exit_code for diagnostic in diagnostics if diagnostic.is_error), default=ExitCode.OK)


def _place(diagnostic: Diagnostic) -> tuple[bool, str, int, int, str]:
    span = diagnostic.span
    if span is None:
        return (True, "", 0, 0, "")
    return (False, span.file, span.line, span.column, diagnostic.code.name)


MAX_SHOWN = 50


def cap(diagnostics: Iterable[Diagnostic], limit: int = MAX_SHOWN) -> tuple[tuple[Diagnostic, ...], int]:
    """Return at most `limit` diagnostics in document order, preferably errors, and how many are omitted."""
    ordered = sort_diagnostics(diagnostics)
    by_severity = sorted(ordered, key=lambda diagnostic: not diagnostic.is_error)
    kept = set(by_severity[:limit])
    return tuple(diagnostic for diagnostic in ordered if diagnostic in kept), max(0, len(ordered) - limit)


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate closest to a word, or None if none is similar."""
    known = sorted(set(candidates) - {word})
    plain = ascii_look_alike(word)
    if plain in known:
        return plain
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(_fold(candidate), candidate)
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    matches = get_close_matches(_fold(plain), folded, n=1, cutoff=_MIN_SIMILARITY)
    return folded[matches[0]] if matches else _only_longer_form(_fold(plain), folded)


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return a help line with the closest candidate, or None if none is similar."""
    suggestion = suggest(word, candidates)
    return None if suggestion is None else f"did you mean '{suggestion}'?"


_MIN_SIMILARITY = 0.7
_MIN_PART = 4

# A part of Unicode's confusables.txt.
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕԁһԛԝАВЕКМНОРСТХІЈЅαοενρτυχικΑΒΕΖΗΙΚΜΝΟΡΤΥΧ‐‑‒–—−․⁃ıɑɡℓ",  # noqa: RUF001 - the ambiguity is the point
    "aeopcyxijsdhqwABEKMHOPCTXIJSaoevptuxikABEZHIKMNOPTYX------.-iagl",
)


def ascii_look_alike(word: str) -> str:
    """Replace look-alike letters by ASCII letters; remove invisible ones."""
    compatible = unicodedata.normalize("NFKC", word)
    visible = "".join(character for character in compatible if unicodedata.category(character) != "Cf")
    return visible.translate(_LOOK_ALIKES)


def _only_longer_form(word: str, folded: Mapping[str, str]) -> str | None:
    """Such as `dataLayer` for `data`."""
    longer = [form for form in folded if len(word) >= _MIN_PART and (form.startswith(word) or form.endswith(word))]
    return folded[longer[0]] if len(longer) == 1 else None


def _fold(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "")


# Editors, unlike str.splitlines(), do not break lines at form feeds, U+0085 and U+2028.
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Lines:
    """A text by line; lines and columns start at 1, columns count code points."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_BREAK.finditer(self.text))]

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, number: int) -> str:
        """Return a line without its line break; empty beyond the last line."""
        return self._lines[number - 1] if 1 <= number <= len(self._lines) else ""

    def position(self, index: int) -> tuple[int, int]:
        """Return line and column of a code point; `index` is clamped to the text."""
        index = max(0, min(index, len(self.text)))
        line = bisect_right(self._starts, index)
        return line, index - self._starts[line - 1] + 1
