"""Nodes of a YAML document to plain data and, for every part of it, where it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from endpick.config.composition import Composition
from endpick.config.scalars import (
    NumberOutOfRangeError,
    Scalar,
    UnreadableScalarError,
    is_ambiguous_number,
    octal_value,
    read_scalar,
)
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, Span
from endpick.diagnostics.lines import Lines

Json = Scalar | Sequence["Json"] | Mapping[str, "Json"]
"""Plain data as JSON knows it. Lists and dictionaries are the caller's own, to keep or to change."""

MAX_NODES = 20_000
MAX_SHOWN_DIGITS = 20

_CORE = "tag:yaml.org,2002:"
_MERGE = f"{_CORE}merge"
_SCALAR_TAGS = frozenset(f"{_CORE}{name}" for name in ("str", "int", "float", "bool", "null"))
_COLLECTION_TAGS: Mapping[type[Node], frozenset[str]] = {
    MappingNode: frozenset({f"{_CORE}map"}),
    SequenceNode: frozenset({f"{_CORE}seq"}),
}
_PROPERTIES = re.compile(r"(?:[&!]\S*(?:\s+|\Z))+")
_COLON = re.compile(r"[ \t]*:")
_TAG = re.compile(r"(?:&\S*\s+)?(!\S*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one part of the document was written."""

    value: Span
    key: Span | None = None
    via: Label | None = None
    """The `<<` or the alias through which it got to its path, if any."""

    plain: str | None = None
    """The text of an unquoted scalar as it was written."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A document as data, with its places and its mistakes."""

    data: Json
    places: Mapping[DocumentPath, Place]
    diagnostics: tuple[Diagnostic, ...]


def build_tree(composition: Composition, lines: Lines, file: str) -> Tree:
    """Data and places in one walk; parts that cannot be read are reported, and left out or read as plain text."""
    walk = _Walk(composition, lines, file)
    try:
        data = walk.value(composition.root, (), Place(walk.span_of(composition.root)))
    except _TooManyNodesError:
        return Tree(None, {}, tuple(walk.diagnostics))
    return Tree(data, walk.places, tuple(walk.diagnostics))


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    key: Node
    value: Node
    via: Label | None
    alias: Span | None


class _TooManyNodesError(Exception):
    pass


class _Walk:
    def __init__(self, composition: Composition, lines: Lines, file: str) -> None:
        self.aliases = composition.aliases
        self.lines = lines
        self.file = file
        self.places: dict[DocumentPath, Place] = {}
        self.diagnostics: list[Diagnostic] = []
        self.ends: dict[int, int] = {}
        self.open: set[int] = set()
        self.visited = 0

    def value(self, node: Node, path: DocumentPath, place: Place) -> Json:
        """The data of a node, after its place and those of everything in it have been noted."""
        if isinstance(node, ScalarNode):
            self._count(place, path)
            return self._scalar(node, path, place)
        self.places[path] = place
        self._count(place, path)
        if id(node) in self.open:
            self._report(Code.E0104, "an alias leads into the value that contains it", _entrance(place), path)
            return None
        self.open.add(id(node))
        self._check_tag(node, path)
        data = self._collection(node, path, place.via)
        self.open.discard(id(node))
        return data

    def span_of(self, node: Node) -> Span:
        """Where a node is written, without its anchor and tag."""
        start = node.start_mark.index
        if node.anchor is not None or self.lines.text[start : start + 1] in ("!", "&"):
            properties = _PROPERTIES.match(self.lines.text, start)
            start = properties.end() if properties else start
        return self._span(start, max(start, self._end_of(node)))

    def _collection(self, node: Node, path: DocumentPath, via: Label | None) -> Json:
        return self._mapping(node, path, via) if isinstance(node, MappingNode) else self._sequence(node, path, via)

    def _mapping(self, node: MappingNode, path: DocumentPath, via: Label | None) -> dict[str, Json]:
        data: dict[str, Json] = {}
        for entry in self._entries(node, path, via).values():
            where = (*path, entry.name)
            span = self._span_of_value(entry.key, entry.value)
            place = Place(span, self.span_of(entry.key), entry.via or _used_here(entry.alias))
            data[entry.name] = self.value(entry.value, where, place)
        return data

    def _sequence(self, node: Node, path: DocumentPath, via: Label | None) -> list[Json]:
        data: list[Json] = []
        for index, item in enumerate(node.value):
            alias = _used_here(self._alias(node, index))
            data.append(self.value(item, (*path, index), Place(self.span_of(item), via=alias or via)))
        return data

    def _entries(self, node: MappingNode, path: DocumentPath, via: Label | None) -> dict[str, _Entry]:
        """The entries of a mapping by name: its own, then those merged into it, which never replace."""
        own: dict[str, _Entry] = {}
        merged: list[tuple[Node, Label]] = []
        for key, value in node.value:
            if key.tag == _MERGE and isinstance(key, ScalarNode):
                merged.append((value, Label(self.span_of(key), "merged in here")))
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in own:
                self._report_duplicate(name, key, own[name], path)
                continue
            own[name] = _Entry(name, key, value, via, self._alias(node, id(key)))
        for value, label in merged:
            for entry in self._merged(value, path, via or label):
                own.setdefault(entry.name, entry)
        return own

    def _merged(self, node: Node, path: DocumentPath, via: Label) -> Iterator[_Entry]:
        place = Place(via.span, via=via)
        self._count(place, path)
        if isinstance(node, MappingNode) and id(node) not in self.open:
            self.open.add(id(node))
            yield from self._entries(node, path, via).values()
            self.open.discard(id(node))
        elif isinstance(node, SequenceNode) and all(isinstance(item, MappingNode) for item in node.value):
            for item in node.value:
                yield from self._merged(item, path, via)
        else:
            self._report(Code.E0112, "'<<' must refer to a mapping, or to a list of mappings", via.span, path)

    def _key(self, key: Node, path: DocumentPath) -> str | None:
        if isinstance(key, ScalarNode):
            self._check_tag(key, path)
            return str(key.value)
        self._report(Code.E0111, "a key must be plain text, not a list or a mapping", self.span_of(key), path)
        return None

    def _scalar(self, node: ScalarNode, path: DocumentPath, place: Place) -> Scalar:
        text = node.value
        plain = text if node.style is None else None
        self.places[path] = Place(place.value, place.key, place.via, plain)
        if not self._check_tag(node, path):
            return str(text)
        try:
            value = read_scalar(node.tag or "", text)
        except UnreadableScalarError:
            self._report(Code.E0203, f"'{text}' does not fit its tag {self._tag_text(node)}", place.value, path)
            return str(text)
        except NumberOutOfRangeError:
            self._report_number(text, place, path)
            return 0
        if plain is not None and is_ambiguous_number(node.tag or "", text):
            self._report_ambiguous(text, value, place, path)
        return value

    def _check_tag(self, node: Node, path: DocumentPath) -> bool:
        """Whether a tag is one of the few that plain data needs; others are reported."""
        allowed = _SCALAR_TAGS if isinstance(node, ScalarNode) else _COLLECTION_TAGS[type(node)]
        written = self._tag_text(node)
        if node.tag in allowed or written in (None, "!"):
            return True
        span = self._tag_span(node)
        self._report(Code.E0103, f"the tag {written} is not allowed", span, path, help="remove the tag")
        return False

    def _tag_text(self, node: Node) -> str | None:
        match = _TAG.match(self.lines.text, node.start_mark.index)
        return match[1] if match else None

    def _tag_span(self, node: Node) -> Span:
        match = _TAG.match(self.lines.text, node.start_mark.index)
        return self._span(*match.span(1)) if match else self.span_of(node)

    def _span_of_value(self, key: Node, value: Node) -> Span:
        end = self._end_of_key(key)
        return self._span(end, end) if _is_empty(value) else self.span_of(value)

    def _end_of_key(self, key: Node) -> int:
        """Just behind the colon, where a value would begin; the parser puts an empty one at whatever comes next."""
        end = self._end_of(key)
        colon = _COLON.match(self.lines.text, end)
        return colon.end() if colon else end

    def _end_of(self, node: Node) -> int:
        """The end of what a node shows; the parser's own end of a block is where the next thing begins."""
        known = self.ends.get(id(node))
        if known is not None:
            return known
        self.ends[id(node)] = end = int(node.end_mark.index)
        if isinstance(node, ScalarNode):
            if node.style in ("|", ">"):
                end = len(self.lines.text[:end].rstrip())
        elif isinstance(node, CollectionNode) and not node.flow_style and node.value:
            end = self._end_of_last(node)
        self.ends[id(node)] = end
        return end

    def _end_of_last(self, node: Node) -> int:
        if isinstance(node, MappingNode):
            key, last = node.value[-1]
            alias = self.aliases.get((id(node), id(key)))
            own = self._end_of_key(key) if _is_empty(last) else self._end_of(last)
        else:
            alias = self.aliases.get((id(node), len(node.value) - 1))
            own = self._end_of(node.value[-1])
        return own if alias is None else alias[1]

    def _alias(self, parent: Node, position: int) -> Span | None:
        alias = self.aliases.get((id(parent), position))
        return None if alias is None else self._span(*alias)

    def _span(self, start: int, end: int) -> Span:
        return Span(self.file, *self.lines.position(start), *self.lines.position(end))

    def _count(self, place: Place, path: DocumentPath) -> None:
        self.visited += 1
        if self.visited > MAX_NODES:
            message = f"the document holds more than {MAX_NODES} values"
            self._report(Code.E0104, message, _entrance(place), path, help="write values out instead of nesting aliases")
            raise _TooManyNodesError

    def _report(self, code: Code, message: str, span: Span, path: DocumentPath, help: str | None = None) -> None:  # noqa: A002
        self.diagnostics.append(Diagnostic(code, message, span, help=help, path=path))

    def _report_duplicate(self, name: str, key: Node, first: _Entry, path: DocumentPath) -> None:
        label = Label(self.span_of(first.key), "first given here")
        self.diagnostics.append(
            Diagnostic(
                Code.E0102,
                f"'{name}' appears twice in one mapping",
                self.span_of(key),
                labels=(label,),
                help="remove one of them",
                path=(*path, name),
            )
        )

    def _report_number(self, text: str, place: Place, path: DocumentPath) -> None:
        shown = text if len(text) <= 2 * MAX_SHOWN_DIGITS else f"{text[:MAX_SHOWN_DIGITS]}..."
        self._report(Code.E0207, f"{shown} is not a finite number of reasonable size", place.value, path)

    def _report_ambiguous(self, text: str, value: Scalar, place: Place, path: DocumentPath) -> None:
        octal = octal_value(text)
        message = f"{text} is {value} to some YAML readers and {octal} to others"
        self._report(Code.E0213, message, place.value, path, help=f"write {value}, or {octal}, or quote it if text is meant")


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index


def _used_here(alias: Span | None) -> Label | None:
    return None if alias is None else Label(alias, "used here")


def _entrance(place: Place) -> Span:
    """Where the document's own text leads to a value: its alias or `<<`, or the value itself."""
    return place.value if place.via is None else place.via.span
