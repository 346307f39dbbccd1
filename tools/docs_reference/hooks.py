"""reference/hooks.md: the host's hooks."""

from __future__ import annotations

import ast
import inspect

from docs_reference.markdown import docstring
from docs_reference.markdown import page as markdown_page
from docs_reference.source import definitions, render
from endpick.api import hooks
from endpick.host.hooks import DEADLINE_SECONDS

ARGUMENTS = ("HostServices", "HostView", "ConfigReport", "AdminPages", "DoctorReport")


def page() -> str:
    """The page."""
    found = definitions(hooks)
    specs, _ = found["HookSpecs"]
    assert isinstance(specs, ast.ClassDef)
    methods = [node for node in specs.body if isinstance(node, ast.FunctionDef)]
    return markdown_page(
        "Host hooks",
        "Hooks let an installed distribution act when endpick starts, reloads, decides and stops, and add pages and checks.",
        inspect.cleandoc((hooks.__doc__ or "").partition("\n")[2]),
        f"An `async def` implementation is awaited for {DEADLINE_SECONDS:.0f} seconds at most.",
        "## Hooks",
        *(render(node.name, _without_self(node), ast.get_docstring(node) or "") for node in methods),
        "## Arguments of hooks",
        *(render(name, *found[name]) for name in ARGUMENTS),
        "### `hookimpl`",
        docstring(found["hookimpl"][1]),
    )


def _without_self(node: ast.FunctionDef) -> ast.FunctionDef:
    node.args.args = node.args.args[1:]
    return node
