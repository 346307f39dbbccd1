"""Where the nodes of a composition stand in the text, more exactly than the parser says."""

from __future__ import annotations

import re

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from endpick.config.composition import Composition
from endpick.diagnostics import Span
from endpick.diagnostics.lines import Lines

_PROPERTIES = re.compile(r"(?:[&!]\S*(?:\s+|\Z))+")
_TAG = re.compile(r"(?:&\S*\s+)?(!\S*)")
_COLON = re.compile(r"[ \t]*:")


class NodeSpans:
    """Spans without anchors and tags, that end where the text of a node ends and not where the next node begins."""

    def __init__(self, composition: Composition, lines: Lines, file: str) -> None:
        self._aliases = composition.aliases
        self._lines = lines
        self._file = file
        self._ends: dict[int, int] = {}

    def node(self, node: Node) -> Span:
        """Where a node is written."""
        start = node.start_mark.index
        if node.anchor is not None or self.tag(node) is not None:
            properties = _PROPERTIES.match(self._lines.text, start)
            start = properties.end() if properties else start
        return self._span(start, max(start, self._end_of(node)))

    def value(self, key: Node, value: Node) -> Span:
        """Where the value of a key is written; one that is empty would begin behind the colon."""
        end = self._end_of_key(key)
        return self._span(end, end) if _is_empty(value) else self.node(value)

    def alias(self, parent: Node, position: int) -> Span | None:
        """The alias that stands for an item or, with the identity of its key, for a value of `parent`."""
        alias = self._aliases.get((id(parent), position))
        return None if alias is None else self._span(*alias)

    def tag(self, node: Node) -> str | None:
        """The tag of a node as it is written; None without one."""
        match = _TAG.match(self._lines.text, node.start_mark.index)
        return match[1] if match else None

    def tag_span(self, node: Node) -> Span:
        """Where the tag of a node is written."""
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
        # The parser puts an empty value at whatever comes next, which may be lines away.
        end = self._end_of(key)
        colon = _COLON.match(self._lines.text, end)
        return colon.end() if colon else end

    def _span(self, start: int, end: int) -> Span:
        return Span(self._file, *self._lines.position(start), *self._lines.position(end))


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index
