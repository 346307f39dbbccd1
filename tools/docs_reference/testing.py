"""reference/testing.md: the conformance kit, its rules, and the fixtures for tests of plugins."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator

import endpick.testing
from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from docs_reference.source import Definition, definitions, render

PUBLIC = frozenset({*endpick.testing.__all__, "Explanation", "HostRefused"})


def page() -> str:
    """The page."""
    rules = ((code(check.id), " ".join(check.doc.split()).partition(": ")[0].rstrip(".") + ".") for check in endpick.testing.all_checks())
    return markdown_page(
        "Testing",
        "The rules of the conformance kit, and the fixtures and strategies for tests of plugins. For a guide, see "
        "[Test a plugin](../how-to/test-a-plugin.md).",
        "## Rules",
        table(("id", "rule"), rules),
        "## The kit",
        *_section("kit", _is_exported),
        *_section("plugin_under_test", _is_exported),
        "## A host without sockets",
        *_section("host", _is_exported),
        "## Pools and requests",
        *_section("factories", _is_exported),
        "## Fixtures",
        "pytest finds them wherever endpick is installed.",
        *_section("pytest_plugin", _is_fixture),
        "## Strategies",
        "For hypothesis, in `endpick.testing.strategies`.",
        *_section("strategies", lambda name, node: isinstance(node, ast.FunctionDef) and not name.startswith("_")),
    )


def _section(module: str, is_shown: Callable[[str, Definition], bool]) -> Iterator[str]:
    found = definitions(importlib.import_module(f"endpick.testing.{module}"))
    return (render(name, *each) for name, each in found.items() if is_shown(name, each[0]))


def _is_exported(name: str, _node: Definition) -> bool:
    return name in PUBLIC


def _is_fixture(_name: str, node: Definition) -> bool:
    return isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(one) for one in node.decorator_list)
