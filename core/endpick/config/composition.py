"""YAML text to a tree of nodes with positions, or the syntax mistake that prevents it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node
from ruamel.yaml.reader import ReaderError

from endpick.diagnostics import Code, Diagnostic, Label, Span
from endpick.diagnostics.lines import Lines

MAX_DEPTH = 100

_HINTS = (
    ("mapping values are not allowed", "a value that contains ': ' must be quoted; otherwise check the indentation"),
    ("cannot start any token", "quote the value if it is meant to begin with this character"),
    ("found undefined alias", "an alias must come after the anchor it names; quote the value if a '*' is meant"),
    ("could not find expected ':'", "every line of a mapping needs 'key: value'"),
    ("expected <block end>", "check that this line is indented like its neighbours"),
    ("unexpected end of stream", "a quote is not closed"),
    ("expected ',' or ']'", "a '[' is not closed, or a comma is missing"),
    ("expected ',' or '}'", "a '{' is not closed, or a comma is missing"),
)

_TABS = re.compile(r"\t+")
_OTHER_VERSION = re.compile(r"^%YAML[ \t]+(?!1\.2\b)(\S+)", re.MULTILINE)


@dataclass(slots=True)
class Composition:
    """The node tree of one document."""

    root: Node
    aliases: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Where an alias stands in the text: (identity of the parent, index or identity of the key) to (start, end)."""


def compose(text: str, file: str) -> Composition | Diagnostic:
    """The only document of a text, or what prevents reading it.

    A parser stops at its first mistake, so there is at most one diagnostic.
    """
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
    except Exception as error:  # whatever a stranger's text makes the parser do is the text's mistake
        return Diagnostic(Code.E0101, f"the text cannot be parsed as YAML ({error})", Span.start_of(file))
    if root is None:
        return _no_document(file)
    second = _start_of_next(documents)
    if second is not None:
        return _several_documents(lines, file, second)
    return Composition(root, yaml.composer.aliases)


class _AliasRecorder(Composer):
    """Remembers where aliases stand; the node they lead to only knows where it was written."""

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
        help="start with 'apiVersion: llm-d.ai/v1alpha1' and 'kind: EndpointPickerConfig'",
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
    # Only where the parser stops: within brackets and quotes YAML allows tabs, and the mistake is another.
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
