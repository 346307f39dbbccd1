"""Documents as block YAML, written without the parser under test, with the lines of every node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]


def paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Of every node but the root, parents first."""
    if path:
        yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from paths(child, (*path, key))


def at(document: Any, path: Path) -> Any:
    """The node that a path leads to."""
    for segment in path:
        document = document[segment]
    return document


@dataclass
class Emitter:
    """Writes block YAML and notes the lines of every node, independently of the parser under test."""

    repeated: Path | None = None
    """A node to write twice."""

    lines: list[str] = field(default_factory=list)
    extents: dict[Path, range] = field(default_factory=dict)

    def write(self, node: Any, path: Path = (), indent: int = 0) -> None:
        start = len(self.lines) + 1
        if isinstance(node, dict | list):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                for _ in range(2 if (*path, key) == self.repeated else 1):
                    self.entry(f"{key}:" if isinstance(node, dict) else "-", child, (*path, key), indent)
        if not path:
            self.extents[()] = range(start, len(self.lines) + 1)

    def entry(self, lead: str, child: Any, path: Path, indent: int) -> None:
        start = len(self.lines) + 1
        if isinstance(child, dict | list) and child:
            self.lines.append(f"{' ' * indent}{lead}")
            self.write(child, path, indent + 2)
        else:
            self.lines.append(f"{' ' * indent}{lead} {json.dumps(child)}")
        first = self.extents.get(path, range(start, start)).start
        self.extents[path] = range(first, len(self.lines) + 1)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def emit(document: Any, repeated: Path | None = None) -> Emitter:
    """The document in block style."""
    emitter = Emitter(repeated)
    emitter.write(document)
    return emitter
