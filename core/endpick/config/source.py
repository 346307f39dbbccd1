"""Where everything in a configuration was written: document paths to places in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from endpick.config.composition import compose
from endpick.config.scalars import Scalar, reading_note
from endpick.config.text import decode
from endpick.config.tree import Json, Place, build_tree
from endpick.diagnostics import Diagnostic, DocumentPath, Label, Span
from endpick.diagnostics.lines import Lines


@dataclass(frozen=True, slots=True)
class SourceMap:
    """One configuration text with the place of each key and value.

    Every question has an answer: a path that the document does not have is answered for its nearest ancestor that it has,
    so that a diagnostic about something missing points at what it is missing from.
    """

    file: str
    text: str
    data: Json = None
    """The document as plain data; None where it could not be read."""

    places: Mapping[DocumentPath, Place] = field(default_factory=dict, repr=False)

    def __contains__(self, path: DocumentPath) -> bool:
        return path in self.places

    def key_span(self, path: DocumentPath) -> Span:
        """The key that leads to a value; the value itself for an item of a list, which has no key."""
        place = self._place(path)
        return place.key or place.value

    def value_span(self, path: DocumentPath) -> Span:
        """The value at a path."""
        return self._place(path).value

    def label_for_merge(self, path: DocumentPath) -> Label | None:
        """The `<<` or alias through which a value got to its path; None for a value written in its place."""
        return self._place(path).via

    def labels_for(self, path: DocumentPath) -> tuple[Label, ...]:
        """`label_for_merge` in the form a diagnostic takes."""
        label = self.label_for_merge(path)
        return () if label is None else (label,)

    def reading_notes(self, path: DocumentPath, value: Json) -> tuple[str, ...]:
        """Why the unquoted scalar at a path reads as `value`, where that may surprise its author."""
        place = self.places.get(path)
        if place is None or place.plain is None or not isinstance(value, Scalar):
            return ()
        note = reading_note(place.plain, value)
        return () if note is None else (note,)

    def nearest(self, path: DocumentPath) -> DocumentPath:
        """The path itself if the document has it, else its nearest ancestor."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def _place(self, path: DocumentPath) -> Place:
        return self.places.get(self.nearest(path)) or Place(Span.start_of(self.file))


def read_source(raw: bytes, file: str) -> tuple[SourceMap, tuple[Diagnostic, ...]]:
    """The source map of a configuration file, and every mistake of its YAML.

    After a mistake that leaves no document the map has neither data nor places; other mistakes leave the rest readable.
    """
    text, mistakes = decode(raw, file)
    if mistakes:
        return SourceMap(file, text), mistakes
    composition = compose(text, file)
    if isinstance(composition, Diagnostic):
        return SourceMap(file, text), (composition,)
    tree = build_tree(composition, Lines(text), file)
    return SourceMap(file, text, tree.data, tree.places), tree.diagnostics
