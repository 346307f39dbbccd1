"""Parses a configuration file into YAML nodes with positions, or reports the syntax error."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode
from ruamel.yaml.reader import ReaderError

from endpick.diagnostics import Code, Diagnostic, Label, Span
from endpick.diagnostics.model import Lines

MAX_DEPTH = 100

_HINTS = (
    ("mapping values are not allowed", "a value that contains ': ' must be quoted; otherwise check the indentation"),
    ("cannot start any token", "quote the value if it is meant to begin with this character"),
    ("found undefined alias", "an alias must come after the anchor it names; quote the value if a '*' is meant"),
    ("could not find expected ':'", "every line of a mapping needs 'key: value'"),
    ("expected <block end>", "check that this line is indented like its neighbours"),
    ("unexpected end of stream", "a quote is not closed"),
    ("expected ',' or ']'", "a '[' is not closed, or a comma is missing"),
    ("expected ',' or '}', but got '{'", "a comma is missing; if ${NAME} is meant: nothing fills it in, so write the value itself"),
    ("expected ',' or '}'", "a '{' is not closed, or a comma is missing"),
)

_TABS = re.compile(r"\t+")
_OTHER_VERSION = re.compile(r"^%YAML[ \t]+(?!1\.2\b)(\S+)", re.MULTILINE)


@dataclass(slots=True)
class Composition:
    """The node tree; `aliases` maps (id of the parent, index or id of the key) to (start, end)."""

    root: Node
    aliases: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


def compose(text: str, file: str) -> Composition | Diagnostic:
    """Parse the single document of a text; returns a diagnostic if that fails."""
    lines = Lines(text)
    if other := _OTHER_VERSION.search(text):
        span = _span(lines, file, other.start(), other.end())
        return Diagnostic(Code.E0101, f"the document asks for YAML {other[1]}; endpick reads YAML 1.2", span, help="remove this line")
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    yaml.Composer = _AliasRecorder
    yaml.max_depth = MAX_DEPTH
    documents = yaml.compose_all(text)
    try:
        root = next(documents, None)
    except MaxDepthExceededError as error:
        return _too_deep(lines, file, error)
    except MarkedYAMLError as error:
        return _syntax_error(lines, file, error)
    except ReaderError as error:
        return _unprintable(lines, file, error)
    except Exception as error:
        return Diagnostic(Code.E0101, f"the text cannot be parsed as YAML ({error})", Span.start_of(file))
    if root is None:
        return _no_document(file)
    second = _start_of_next(documents)
    if second is not None:
        return _several_documents(lines, file, second)
    return Composition(root, yaml.composer.aliases)


class _AliasRecorder(Composer):
    """Records positions of aliases; nodes know only those of their anchors."""

    def __init__(self, loader: object = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self.aliases: dict[tuple[int, int], tuple[int, int]] = {}

    def compose_node(self, parent: object, index: object) -> object:
        if self.parser.check_event(AliasEvent):
            event = self.parser.peek_event()
            position = index if isinstance(index, int) else id(index)
            self.aliases[id(parent), position] = (event.start_mark.index, event.end_mark.index)
        return super().compose_node(parent, index)


def _start_of_next(documents: Iterator[Node]) -> int | None:
    try:
        node = next(documents, None)
    except MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark
        return 0 if mark is None else int(mark.index)
    return None if node is None else int(node.start_mark.index)


def _several_documents(lines: Lines, file: str, second: int) -> Diagnostic:
    start = max(lines.text.rfind("\n---", 0, second + 1) + 1, 0)
    return Diagnostic(
        Code.E0107,
        "the file holds more than one document",
        _span(lines, file, start, start + 3),
        help="keep one EndpointPickerConfig per file; remove everything from this '---' on",
        annotation="a second document starts here",
    )


def _no_document(file: str) -> Diagnostic:
    return Diagnostic(
        Code.E0108,
        "the file holds no document",
        Span.start_of(file),
        help="start with 'apiVersion: llm-d.ai/v1' and 'kind: EndpointPickerConfig'",
    )


def _too_deep(lines: Lines, file: str, error: MaxDepthExceededError) -> Diagnostic:
    start = error.problem_mark.index
    return Diagnostic(
        Code.E0104,
        f"the document is nested more than {MAX_DEPTH} levels deep",
        _span(lines, file, start, start + 1),
        annotation="too deep from here on",
    )


def _unprintable(lines: Lines, file: str, error: ReaderError) -> Diagnostic:
    character = lines.text[error.position : error.position + 1]
    return Diagnostic(
        Code.E0101,
        f"the character U+{ord(character):04X} is not allowed in YAML",
        _span(lines, file, error.position, error.position + 1),
        help="remove it, or write it as an escape inside double quotes",
    )


def _syntax_error(lines: Lines, file: str, error: MarkedYAMLError) -> Diagnostic:
    mark = error.problem_mark or error.context_mark
    index = len(lines.text) if mark is None else min(mark.index, len(lines.text))
    # Brackets and quotes may hold tabs; only a tab at the error counts.
    if tabs := _TABS.match(lines.text, index):
        return Diagnostic(
            Code.E0109,
            "a tab is used for indentation",
            _span(lines, file, *tabs.span()),
            help="YAML indents with spaces only; replace each tab by spaces",
        )
    problem = " ".join(str(error.problem or error.context or "the text cannot be parsed").split())
    labels: tuple[Label, ...] = ()
    if error.context and error.context_mark is not None and error.context_mark.index != index:
        context = error.context_mark.index
        labels = (Label(_span(lines, file, context, context + 1), " ".join(str(error.context).split())),)
    return Diagnostic(
        Code.E0101,
        problem,
        _span(lines, file, index, index + 1),
        labels=labels,
        help=next((hint for symptom, hint in _HINTS if symptom in problem), None),
    )


def _span(lines: Lines, file: str, start: int, end: int) -> Span:
    return Span(file, *lines.position(start), *lines.position(end))


_PROPERTIES = re.compile(r"(?:[&!]\S*(?:\s+|\Z))+")
_TAG = re.compile(r"(?:&\S*\s+)?(!\S*)")
_COLON = re.compile(r"[ \t]*:")


class NodeSpans:
    """Computes spans of nodes, without anchors, tags and trailing space."""

    def __init__(self, composition: Composition, lines: Lines, file: str) -> None:
        self._aliases = composition.aliases
        self._lines = lines
        self._file = file
        self._ends: dict[int, int] = {}

    def node(self, node: Node) -> Span:
        """Return the span of a node."""
        start = node.start_mark.index
        if node.anchor is not None or self.tag(node) is not None:
            properties = _PROPERTIES.match(self._lines.text, start)
            start = properties.end() if properties else start
        return self._span(start, max(start, self._end_of(node)))

    def value(self, key: Node, value: Node) -> Span:
        """Return the span of a key's value; if empty, the position after the colon."""
        end = self._end_of_key(key)
        return self._span(end, end) if _is_empty(value) else self.node(value)

    def alias(self, parent: Node, position: int) -> Span | None:
        """Return the span of an alias in `parent`; `position` is an index or the id of a key."""
        alias = self._aliases.get((id(parent), position))
        return None if alias is None else self._span(*alias)

    def tag(self, node: Node) -> str | None:
        """Return the tag as written, or None without one."""
        match = _TAG.match(self._lines.text, node.start_mark.index)
        return match[1] if match else None

    def tag_span(self, node: Node) -> Span:
        """Return the span of a node's tag, or of the node if it has none."""
        match = _TAG.match(self._lines.text, node.start_mark.index)
        return self._span(*match.span(1)) if match else self.node(node)

    def _end_of(self, node: Node) -> int:
        known = self._ends.get(id(node))
        if known is not None:
            return known
        self._ends[id(node)] = end = int(node.end_mark.index)
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            end = len(self._lines.text[:end].rstrip())
        elif isinstance(node, CollectionNode) and not node.flow_style and node.value:
            end = self._end_of_last(node)
        self._ends[id(node)] = end
        return end

    def _end_of_last(self, node: Node) -> int:
        if isinstance(node, MappingNode):
            key, last = node.value[-1]
            alias = self._aliases.get((id(node), id(key)))
            own = self._end_of_key(key) if _is_empty(last) else self._end_of(last)
        else:
            alias = self._aliases.get((id(node), len(node.value) - 1))
            own = self._end_of(node.value[-1])
        return own if alias is None else alias[1]

    def _end_of_key(self, key: Node) -> int:
        # The parser places an empty value at the next token.
        end = self._end_of(key)
        colon = _COLON.match(self._lines.text, end)
        return colon.end() if colon else end

    def _span(self, start: int, end: int) -> Span:
        return Span(self._file, *self._lines.position(start), *self._lines.position(end))


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index


MAX_BYTES = 1 << 18
# Parsing takes about ten seconds per MiB; known configurations have a few KiB.


def decode(raw: bytes, file: str) -> tuple[str, tuple[Diagnostic, ...]]:
    """Return the text without byte order mark, and the mistakes that prevent parsing."""
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

    starts = list(_CONFLICT_START.finditer(text))
    found = []
    for start, following in zip_longest(starts, starts[1:]):
        limit = len(text) if following is None else following.start()
        middle = _CONFLICT_MIDDLE.search(text, start.end(), limit)
        end = _CONFLICT_END.search(text, start.end(), limit)
        labels = [Label(_span(lines, file, *match.span()), words) for match, words in ((middle, "other side"), (end, "end")) if match]
        found.append(
            Diagnostic(
                Code.E0106,
                "a merge conflict was left in the file",
                _span(lines, file, *start.span()),
                labels=tuple(labels),
                help="keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>",
            )
        )
    return found
