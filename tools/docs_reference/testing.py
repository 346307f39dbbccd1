"""reference/testing.md: the conformance kit, its rules, and the fixtures for tests of plugins."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from docs_reference.source import Definition, definitions, render
from endpick.testing import all_checks

SECTIONS = (
    ("The kit", "kit", ("parametrize_conformance",)),
    ("The kit without pytest", "kit", ("conformance", "ConformanceReport", "CheckOutcome", "CheckStatus")),
    ("A host without sockets", "host", ("Host", "Explanation", "FaultRecord", "HostRefused")),
    ("Pools and requests", "factories", ("make_pool",)),
    ("", "factories", ("make_request",)),
)


def page() -> str:
    """The page."""
    rules = ((code(check.id), " ".join(check.doc.split())) for check in all_checks())
    return markdown_page(
        "Testing",
        "Look up here the rules of the conformance kit, and the fixtures and strategies with which you test a plugin. "
        "[Test a plugin](../how-to/test-a-plugin.md) shows them at work.",
        "## Rules",
        table(("id", "rule"), rules),
        *(part for title, module, names in SECTIONS for part in _section(title, module, names)),
        "## Fixtures",
        "pytest finds them by itself wherever endpick is installed.",
        *(render(name, node, doc, 3) for name, (node, doc) in _of("pytest_plugin") if _is_fixture(node)),
        "## Strategies",
        "For hypothesis, in `endpick.testing.strategies`.",
        *(render(name, node, doc, 3) for name, (node, doc) in _of("strategies") if isinstance(node, ast.FunctionDef) and doc),
    )


def _section(title: str, module: str, names: tuple[str, ...]) -> Iterator[str]:
    if title:
        yield f"## {title}"
    found = dict(_of(module))
    yield from (render(name, *found[name], 3) for name in names)


def _of(module: str) -> Iterator[tuple[str, tuple[Definition, str]]]:
    found = definitions(importlib.import_module(f"endpick.testing.{module}"))
    return ((name, each) for name, each in found.items() if not name.startswith("_"))


def _is_fixture(node: Definition) -> bool:
    return isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(one) for one in node.decorator_list)
