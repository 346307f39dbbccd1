"""reference/testing.md: the conformance kit, its rules, and the fixtures for tests of plugins."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from docs_reference.source import Definition, definitions, in_short, render
from endpick.testing import all_checks

SECTIONS = (
    ("The kit", "kit", ("parametrize_conformance", "conformance", "ConformanceReport", "CheckOutcome", "CheckStatus")),
    ("A host without sockets", "host", ("Host", "Explanation", "HostRefused")),
    ("Pools and requests", "factories", ("make_pool", "make_request")),
)
IN_FULL = frozenset({"parametrize_conformance", "make_pool", "make_request"})


def page() -> str:
    """The page."""
    rules = ((code(check.id), " ".join(check.doc.split()).partition(": ")[0].rstrip(".") + ".") for check in all_checks())
    return markdown_page(
        "Testing",
        "The rules of the conformance kit, and the fixtures and strategies for tests of plugins. For a guide, see "
        "[Test a plugin](../how-to/test-a-plugin.md).",
        "## Rules",
        table(("id", "rule"), rules),
        *(part for title, module, names in SECTIONS for part in _section(title, module, names)),
        "## Fixtures",
        "pytest finds them wherever endpick is installed.",
        *(in_short(name, node, doc, 3) for name, (node, doc) in _of("pytest_plugin") if _is_fixture(node)),
        "## Strategies",
        "For hypothesis, in `endpick.testing.strategies`.",
        *(in_short(name, node, doc, 3) for name, (node, doc) in _of("strategies") if isinstance(node, ast.FunctionDef) and doc),
    )


def _section(title: str, module: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}"
    found = dict(_of(module))
    yield from ((render if name in IN_FULL else in_short)(name, *found[name], 3) for name in names)


def _of(module: str) -> Iterator[tuple[str, tuple[Definition, str]]]:
    found = definitions(importlib.import_module(f"endpick.testing.{module}"))
    return ((name, each) for name, each in found.items() if not name.startswith("_"))


def _is_fixture(node: Definition) -> bool:
    return isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(one) for one in node.decorator_list)
