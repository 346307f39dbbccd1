"""Rewrites an EndpointPickerConfig as `llm-d.ai/v1`, keeping comments and quotes."""

from __future__ import annotations

import io
from collections.abc import Iterator

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.util import load_yaml_guess_indent

from endpick.config.model import ALPHA_VERSIONS, LLM_D
from endpick.config.versions import former_places

_WIDE = 4096
Path = tuple[str, ...]


def rewrite(text: str) -> tuple[str, tuple[str, ...]]:
    """Move fields to their places in `llm-d.ai/v1`; returns the new text and a line for each change.

    `text` is a configuration without errors.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    document, indent, offset = load_yaml_guess_indent(text, yaml=yaml)
    changes = tuple(_rewrite(document))
    if not changes:
        return text, ()
    yaml.indent(mapping=indent if indent and offset is None else 2, sequence=(offset or 0) + 2, offset=offset or 0)
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue(), changes


def _rewrite(document: CommentedMap) -> Iterator[str]:
    version = document.get("apiVersion")
    if version in ALPHA_VERSIONS:
        document["apiVersion"] = LLM_D
        yield f"apiVersion {version} becomes {LLM_D}"
    for former, successor in former_places():
        yield from _move(document, former, successor)


def _move(document: CommentedMap, former: Path, successor: Path) -> Iterator[str]:
    parent = _find(document, former[:-1])
    if parent is None or former[-1] not in parent:
        return
    shown = ".".join(former)
    if _has(document, successor):
        del parent[former[-1]]
        yield f"{shown} is removed: {'.'.join(successor)} is used"
        return
    comment = parent.ca.items.pop(former[-1], None)
    value = parent.pop(former[-1])
    target = _section(document, successor[:-1])
    target[successor[-1]] = CommentedSeq([value]) if former == ("parser",) else value  # now a list
    if comment is not None:
        target.ca.items[successor[-1]] = comment
    yield f"{shown} becomes {'.'.join(successor)}"


def _find(document: CommentedMap, path: Path) -> CommentedMap | None:
    part: object = document
    for name in path:
        part = part.get(name) if isinstance(part, CommentedMap) else None
    return part if isinstance(part, CommentedMap) else None


def _has(document: CommentedMap, path: Path) -> bool:
    parent = _find(document, path[:-1])
    return parent is not None and bool(parent.get(path[-1]))


def _section(document: CommentedMap, path: Path) -> CommentedMap:
    part = document
    for name in path:
        if not isinstance(part.get(name), CommentedMap):
            part[name] = CommentedMap()
        part = part[name]
    return part
