"""Reads YAML with the place of every key and value; reports values that YAML 1.1 and 1.2 read differently."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from endpick.config.yaml_nodes import Composition, NodeSpans, compose, decode
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, Span
from endpick.diagnostics.model import Lines

Scalar = str | int | float | bool | None

Json = Scalar | Sequence["Json"] | Mapping[str, "Json"]  # plain data; the caller owns lists and dictionaries

_CORE = "tag:yaml.org,2002:"

MAX_NODES = 20_000  # with aliases expanded

MAX_SHOWN_DIGITS = 20

_MERGE = f"{_CORE}merge"
_SCALAR_TAGS = frozenset(f"{_CORE}{name}" for name in ("str", "int", "float", "bool", "null"))
_COLLECTION_TAGS: Mapping[type[Node], frozenset[str]] = {MappingNode: frozenset({f"{_CORE}map"}), SequenceNode: frozenset({f"{_CORE}seq"})}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one value and its key in the text."""

    value: Span
    key: Span | None = None
    via: Label | None = None  # the `<<` or alias that includes it
    plain: str | None = None  # unquoted scalar as written


@dataclass(frozen=True, slots=True)
class SourceMap:
    """A text with its keys and values; a missing path has the place of its nearest ancestor."""

    file: str
    text: str
    data: Json = None
    places: Mapping[DocumentPath, Place] = field(default_factory=dict, repr=False)

    def __contains__(self, path: DocumentPath) -> bool:
        return path in self.places

    def key_span(self, path: DocumentPath) -> Span:
        """Return the span of the key at a path; of the value for an item of a list."""
        place = self._place(path)
        return place.key or place.value

    def value_span(self, path: DocumentPath) -> Span:
        """Return the span of the value at a path."""
        return self._place(path).value

    def labels_for(self, path: DocumentPath) -> tuple[Label, ...]:
        """Return a label at the `<<` or alias that includes the value, if there is one."""
        label = self._place(path).via
        return () if label is None else (label,)

    def diagnostic(
        self, code: Code, message: str, path: DocumentPath, advice: str | None, notes: tuple[str, ...] = (), *, at_key: bool = False
    ) -> Diagnostic:
        """Return a diagnostic about the value at a path, or about its key."""
        span = self.key_span(path) if at_key else self.value_span(path)
        return Diagnostic(code, message, span, self.labels_for(path), advice, notes, path=path)

    def reading_notes(self, path: DocumentPath, value: Json) -> tuple[str, ...]:
        """Explain an unquoted scalar that reads as a surprising `value`."""
        place = self.places.get(path)
        if place is None or place.plain is None or not isinstance(value, Scalar):
            return ()
        note = _reading_note(place.plain, value)
        return () if note is None else (note,)

    def nearest(self, path: DocumentPath) -> DocumentPath:
        """Return the path, or its nearest ancestor in the document."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def _place(self, path: DocumentPath) -> Place:
        return self.places.get(self.nearest(path)) or Place(Span.start_of(self.file))


def read_source(raw: bytes, file: str) -> tuple[SourceMap, tuple[Diagnostic, ...]]:
    """Return the source map and the YAML mistakes of a file.

    After a syntax error the map is empty; unreadable values are left out or read as text.
    """
    text, mistakes = decode(raw, file)
    if mistakes:
        return SourceMap(file, text), mistakes
    composition = compose(text, file)
    if isinstance(composition, Diagnostic):
        return SourceMap(file, text), (composition,)
    walk = _Walk(composition, Lines(text), file)
    try:
        data = walk.value(composition.root, (), Place(walk.spans.node(composition.root)))
    except _TooManyNodesError:
        return SourceMap(file, text), tuple(walk.diagnostics)
    return SourceMap(file, text, data, walk.places), tuple(walk.diagnostics)


class _Walk:
    def __init__(self, composition: Composition, lines: Lines, file: str) -> None:
        self.spans = NodeSpans(composition, lines, file)
        self.places: dict[DocumentPath, Place] = {}
        self.diagnostics: list[Diagnostic] = []
        self.reported: set[tuple[Code, Span]] = set()
        self.open: set[int] = set()
        self.visited = 0

    def value(self, node: Node, path: DocumentPath, place: Place) -> Json:
        self._count(place, path)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path, place)
        self.places[path] = place
        if id(node) in self.open:
            self._report_circle(_entrance(place), path)
            return None
        self.open.add(id(node))
        self._check_tag(node, path)
        data: Json = self._mapping(node, path, place.via) if isinstance(node, MappingNode) else self._sequence(node, path, place.via)
        self.open.discard(id(node))
        return data

    def _mapping(self, node: MappingNode, path: DocumentPath, via: Label | None) -> dict[str, Json]:
        data: dict[str, Json] = {}
        for entry in self._entries(node, path, via).values():
            where = (*path, entry.name)
            span = self.spans.value(entry.key, entry.value)
            place = Place(span, self.spans.node(entry.key), entry.via or _used_here(entry.alias))
            data[entry.name] = self.value(entry.value, where, place)
        return data

    def _sequence(self, node: Node, path: DocumentPath, via: Label | None) -> list[Json]:
        data: list[Json] = []
        for index, item in enumerate(node.value):
            alias = _used_here(self.spans.alias(node, index))
            data.append(self.value(item, (*path, index), Place(self.spans.node(item), via=via or alias)))
        return data

    def _entries(self, node: MappingNode, path: DocumentPath, via: Label | None) -> dict[str, _Entry]:
        own: dict[str, _Entry] = {}
        merged: list[tuple[Node, Label]] = []
        for key, value in node.value:
            if key.tag == _MERGE and isinstance(key, ScalarNode):
                merged.append((value, Label(self.spans.node(key), "merged in here")))
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in own:
                self._report_duplicate(name, key, own[name], path)
                continue
            own[name] = _Entry(name, key, value, via, self.spans.alias(node, id(key)))
        for value, label in merged:
            for entry in self._merged(value, path, via or label):
                own.setdefault(entry.name, entry)
        return own

    def _merged(self, node: Node, path: DocumentPath, via: Label) -> Iterator[_Entry]:
        self._count(Place(via.span, via=via), path)
        if id(node) in self.open:
            self._report_circle(via.span, path)
        elif isinstance(node, MappingNode):
            self.open.add(id(node))
            yield from self._entries(node, path, via).values()
            self.open.discard(id(node))
        elif isinstance(node, SequenceNode) and all(isinstance(item, MappingNode) for item in node.value):
            for item in node.value:
                yield from self._merged(item, path, via)
        else:
            message = "'<<' must refer to a mapping, or to a list of mappings"
            self._report(Code.E0112, message, via.span, path, help="write '<<: *name', where '&name' marks a mapping")

    def _key(self, key: Node, path: DocumentPath) -> str | None:
        if isinstance(key, ScalarNode):
            self._check_tag(key, path)
            return str(key.value)
        message = "a key must be plain text, not a list or a mapping"
        self._report(Code.E0111, message, self.spans.node(key), path, help="put the key in quotes if it is meant as text")
        return None

    def _scalar(self, node: ScalarNode, path: DocumentPath, place: Place) -> Scalar:
        text = node.value
        plain = text if node.style is None else None
        self.places[path] = Place(place.value, place.key, place.via, plain)
        if not self._check_tag(node, path):
            return str(text)
        try:
            value = _read_scalar(node.tag or "", text)
        except _UnreadableScalarError:
            self._report(Code.E0203, f"'{text}' does not fit its tag {self.spans.tag(node)}", place.value, path)
            return str(text)
        except _NumberOutOfRangeError:
            self._report_number(text, place, path)
            return 0
        if plain is not None and node.tag == f"{_CORE}int" and _OCTAL_IN_YAML_1_1.fullmatch(text):
            self._report_ambiguous(text, value, place, path)
        return value

    def _check_tag(self, node: Node, path: DocumentPath) -> bool:
        allowed = _SCALAR_TAGS if isinstance(node, ScalarNode) else _COLLECTION_TAGS[type(node)]
        written = self.spans.tag(node)
        if node.tag in allowed or written in (None, "!"):
            return True
        span = self.spans.tag_span(node)
        self._report(Code.E0103, f"the tag {written} is not allowed", span, path, help="remove the tag")
        return False

    def _count(self, place: Place, path: DocumentPath) -> None:
        self.visited += 1
        if self.visited > MAX_NODES:
            message = f"the document holds more than {MAX_NODES} values"
            self._report(Code.E0104, message, _entrance(place), path, help="write values out instead of nesting aliases")
            raise _TooManyNodesError

    def _report(
        self,
        code: Code,
        message: str,
        span: Span,
        path: DocumentPath,
        help: str | None = None,  # noqa: A002 - the field it fills
        labels: tuple[Label, ...] = (),
    ) -> None:
        """Report once per place, even if several aliases lead to it."""
        if (code, span) not in self.reported:
            self.reported.add((code, span))
            self.diagnostics.append(Diagnostic(code, message, span, labels, help, path=path))

    def _report_duplicate(self, name: str, key: Node, first: _Entry, path: DocumentPath) -> None:
        labels = (Label(self.spans.node(first.key), "first given here"),)
        message = f"'{name}' appears twice in one mapping"
        self._report(Code.E0102, message, self.spans.node(key), (*path, name), "remove one of them", labels)

    def _report_circle(self, span: Span, path: DocumentPath) -> None:
        message = "an alias leads into the value that contains it"
        self._report(Code.E0104, message, span, path, help="write out the part that is meant")

    def _report_number(self, text: str, place: Place, path: DocumentPath) -> None:
        shown = text if len(text) <= 2 * MAX_SHOWN_DIGITS else f"{text[:MAX_SHOWN_DIGITS]}..."
        self._report(Code.E0207, f"{shown} is not a finite number of reasonable size", place.value, path)

    def _report_ambiguous(self, text: str, value: Scalar, place: Place, path: DocumentPath) -> None:
        octal = int(text.replace("_", ""), 8)
        message = f"{text} is {value} to some YAML readers and {octal} to others"
        self._report(Code.E0213, message, place.value, path, help=f"write {value}, or {octal}, or quote it if text is meant")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    key: Node
    value: Node
    via: Label | None
    alias: Span | None


class _TooManyNodesError(Exception):
    pass


def _used_here(alias: Span | None) -> Label | None:
    return None if alias is None else Label(alias, "used here")


def _entrance(place: Place) -> Span:
    return place.value if place.via is None else place.via.span


class _UnreadableScalarError(ValueError):
    """Raised if a scalar does not fit its tag, such as `!!int twelve`."""


class _NumberOutOfRangeError(ValueError):
    """NaN, infinity, or more than `MAX_DIGITS` digits."""


MAX_DIGITS = 40


def _read_scalar(tag: str, text: str) -> Scalar:
    """Read a scalar by the rules of YAML 1.2; dates stay text."""
    match tag.removeprefix(_CORE):
        case "null":
            return None
        case "bool":
            return _read_bool(text)
        case "int":
            return _read_int(text)
        case "float":
            return _read_float(text)
        case _:
            return text


def _read_bool(text: str) -> bool:
    word = text.casefold()
    if word == "true" or word in _TRUE_IN_YAML_1_1:
        return True
    if word == "false" or word in _FALSE_IN_YAML_1_1:
        return False
    raise _UnreadableScalarError(text)


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _NumberOutOfRangeError(text)
    digits = text.replace("_", "")
    unsigned = digits.lstrip("+-").casefold()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(unsigned[:2], 10)
    try:
        return int(digits, base)
    except ValueError:
        raise _UnreadableScalarError(text) from None


def _read_float(text: str) -> float:
    digits = text.replace("_", "").casefold()
    try:
        value = float(re.sub(r"\.(inf|nan)$", r"\1", digits))
    except ValueError:
        raise _UnreadableScalarError(text) from None
    if not math.isfinite(value):
        raise _NumberOutOfRangeError(text)
    return value


# Booleans in YAML 1.1, as for llm-d's reader; text in YAML 1.2.
_TRUE_IN_YAML_1_1 = frozenset({"y", "yes", "on"})
_FALSE_IN_YAML_1_1 = frozenset({"n", "no", "off"})

# Octal in YAML 1.1, decimal in YAML 1.2.
_OCTAL_IN_YAML_1_1 = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")


def _reading_note(text: str, value: Scalar) -> str | None:
    word = text.casefold()
    if isinstance(value, str):
        if word in _TRUE_IN_YAML_1_1:
            return f"YAML 1.2 reads {text} as text; where a boolean is meant, write true"
        if word in _FALSE_IN_YAML_1_1:
            return f"YAML 1.2 reads {text} as text; where a boolean is meant, write false"
        return None
    if value is None:
        return f"YAML reads {text} as no value; quote it if text is meant" if text else None
    if isinstance(value, float) and value.is_integer() and "e" in word:
        return f"YAML reads {text} as the fractional number {value}; write {int(value)} for the whole number"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if text != shown:
        return f"YAML reads {text} as {shown}; quote it if text is meant"
    return None


def is_number(text: str) -> bool:
    """Return whether YAML reads the text as a finite number if it is not quoted."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
