"""reference/api.md: everything a plugin may import."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import endpick.api
from docs_reference.markdown import page as markdown_page
from docs_reference.source import definitions, render

FIRST = (
    "plugin",
    "scheduling",
    "request_control",
    "datalayer",
    "data",
    "keys",
    "endpoints",
    "state",
    "request",
    "metrics",
    "duration",
    "errors",
)
"""What authors meet first comes first; other modules follow by name."""


ELSEWHERE = frozenset({"hookimpl"})
"""Exported names with a better place."""


def page() -> str:
    """The page."""
    public = set(endpick.api.__all__)
    sections, shown = [], set()
    for module in _modules():
        found = {name: each for name, each in definitions(module).items() if name in public - ELSEWHERE}
        if not found:
            continue
        shown |= found.keys()
        lines = (module.__doc__ or "").strip().splitlines()
        sections.append("\n\n".join((f"## {_title(lines[0])}", *(render(name, node, doc, 3) for name, (node, doc) in found.items()))))
    missing = public - shown - ELSEWHERE
    if missing:
        raise SystemExit(f"endpick.api exports {', '.join(sorted(missing))}, which no page documents")
    return markdown_page(
        "Plugin API",
        "Look up here what a plugin may import from `endpick.api`: when the host calls it, with what, "
        "and what it may raise. Nothing else of endpick is for plugins.",
        *sections,
    )


def _modules() -> list[ModuleType]:
    names = [found.name for found in pkgutil.iter_modules(endpick.api.__path__)]
    return [importlib.import_module(f"endpick.api.{name}") for name in dict.fromkeys((*FIRST, *sorted(names)))]


def _title(first_line: str) -> str:
    title = first_line.partition(":")[0].rstrip(".")
    return title[0].upper() + title[1:]
