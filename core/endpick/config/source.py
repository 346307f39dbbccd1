"""Reads a configuration file into a source map: its data and the position of every key and value."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from endpick.config.yaml_nodes import compose
from endpick.config.yaml_values import Json, Place, Scalar, build_tree, reading_note
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, Span
from endpick.diagnostics.model import Lines

MAX_BYTES = 1 << 18
"""Parsing takes about ten seconds per MiB; known configurations have a few KiB."""


@dataclass(frozen=True, slots=True)
class SourceMap:
    """A configuration text with the place of each key and value.

    For a path that the document does not have, spans and labels are those of its nearest ancestor.
    """

    file: str
    text: str
    data: Json = None

    places: Mapping[DocumentPath, Place] = field(default_factory=dict, repr=False)

    def __contains__(self, path: DocumentPath) -> bool:
        return path in self.places

    def key_span(self, path: DocumentPath) -> Span:
        """The key of a value; for an item of a list, the value."""
        place = self._place(path)
        return place.key or place.value

    def value_span(self, path: DocumentPath) -> Span:
        """The value at a path."""
        return self._place(path).value

    def label_for_merge(self, path: DocumentPath) -> Label | None:
        """The `<<` or alias that brought a value to its path; None for a value written in place."""
        return self._place(path).via

    def labels_for(self, path: DocumentPath) -> tuple[Label, ...]:
        """`label_for_merge` as a tuple."""
        label = self.label_for_merge(path)
        return () if label is None else (label,)

    def reading_notes(self, path: DocumentPath, value: Json) -> tuple[str, ...]:
        """An explanation if the unquoted scalar at a path reads as a surprising `value`."""
        place = self.places.get(path)
        if place is None or place.plain is None or not isinstance(value, Scalar):
            return ()
        note = reading_note(place.plain, value)
        return () if note is None else (note,)

    def nearest(self, path: DocumentPath) -> DocumentPath:
        """The path, or its nearest ancestor in the document."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def _place(self, path: DocumentPath) -> Place:
        return self.places.get(self.nearest(path)) or Place(Span.start_of(self.file))


def read_source(raw: bytes, file: str) -> tuple[SourceMap, tuple[Diagnostic, ...]]:
    """The source map of a file, and every YAML mistake; a syntax error leaves the map without data and places."""
    text, mistakes = decode(raw, file)
    if mistakes:
        return SourceMap(file, text), mistakes
    composition = compose(text, file)
    if isinstance(composition, Diagnostic):
        return SourceMap(file, text), (composition,)
    tree = build_tree(composition, Lines(text), file)
    return SourceMap(file, text, tree.data, tree.places), tree.diagnostics


def decode(raw: bytes, file: str) -> tuple[str, tuple[Diagnostic, ...]]:
    """The text without byte order mark, and the mistakes that prevent parsing it."""
    if len(raw) > MAX_BYTES:
        return "", (_too_large(file),)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", errors="replace"), (_not_utf8(raw, error, file),)
    text = text.removeprefix(_BOM)
    return text, tuple(_merge_conflicts(text, file))


_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def _too_large(file: str) -> Diagnostic:
    return Diagnostic(
        Code.E0104,
        f"the file is larger than {MAX_BYTES} bytes, the most a configuration may have",
        Span.start_of(file),
        help="is this the right file?",
    )


def _not_utf8(raw: bytes, error: UnicodeDecodeError, file: str) -> Diagnostic:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Diagnostic(Code.E0105, "the file is UTF-16 text, not UTF-8", Span.start_of(file), help="save the file as UTF-8")
    before = raw[: error.start].decode("utf-8").removeprefix(_BOM)
    line, column = Lines(before).position(len(before))
    return Diagnostic(
        Code.E0105,
        f"the byte 0x{raw[error.start]:02x} is not UTF-8 text",
        Span(file, line, column, line, column + 1),
        help="save the file as UTF-8",
    )


_CONFLICT_START = re.compile(r"^<{7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)

_CONFLICT_MIDDLE = re.compile(r"^={7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)

_CONFLICT_END = re.compile(r"^>{7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)


def _merge_conflicts(text: str, file: str) -> list[Diagnostic]:
    lines = Lines(text)

    def span(match: re.Match[str]) -> Span:
        return Span(file, *lines.position(match.start()), *lines.position(match.end()))

    starts = list(_CONFLICT_START.finditer(text))
    found = []
    for start, following in zip_longest(starts, starts[1:]):
        limit = len(text) if following is None else following.start()
        middle = _CONFLICT_MIDDLE.search(text, start.end(), limit)
        end = _CONFLICT_END.search(text, start.end(), limit)
        labels = [Label(span(match), words) for match, words in ((middle, "other side"), (end, "end")) if match]
        found.append(
            Diagnostic(
                Code.E0106,
                "a merge conflict was left in the file",
                span(start),
                labels=tuple(labels),
                help="keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>",
            )
        )
    return found
