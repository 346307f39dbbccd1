"""Reads YAML that is no configuration, such as a Deployment or a description of endpoints: plain data within bounds, or why not."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

_DEEPEST = 100
_MOST_VALUES = 100_000


def documents_of(text: str) -> list[object]:
    """All documents of a text as plain data.

    Raises:
        ValueError: it is no YAML, a value is not of the type that its tag names, or with what aliases repeat it has too many values.
    """
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    yaml.max_depth = _DEEPEST
    yaml.composer.warn_double_anchors = False  # YAML allows it, and a document may do so in each of its lines
    try:
        for node in yaml.compose_all(text):
            _size_of(node, {})
        return list(yaml.load_all(text))
    # All but the first are what the parser raises for values that are not of the type that their tag names.
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ValueError(str(problem)) from problem


def _size_of(node: Any, known: dict[int, int]) -> int:  # noqa: ANN401 - ruamel has no types
    """How many values a node stands for, each time that an alias repeats it counted.

    Raises:
        ValueError: more than any such text has, or without end.
    """
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES  # what holds itself finds this
        inner = node.value if isinstance(node.value, list) else []
        parts = (part for each in inner for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] = 1 + sum(_size_of(part, known) for part in parts)
    if known[id(node)] >= _MOST_VALUES:
        raise ValueError(f"with all that aliases repeat it has more than {_MOST_VALUES} values")
    return known[id(node)]
