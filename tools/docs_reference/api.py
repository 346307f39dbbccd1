"""reference/api.md: everything a plugin may import."""

from __future__ import annotations

import importlib
import pkgutil
from itertools import chain
from types import ModuleType

import endpick.api
from docs_reference.markdown import page as markdown_page
from docs_reference.source import definitions, render
from endpick.api import DataKey

MODULES_FOR_PLUGINS = ("flow_control", "discovery", "fleet", "keys", "request", "metrics", "fast_metrics")
"""Plugins import these modules, too."""

MODULES = {
    "plugin": "Every plugin",
    "scheduling": "Scheduling",
    "request_control": "Around scheduling",
    "flow_control": "Flow control",
    "datalayer": "Data layer",
    "discovery": "Discovery",
    "fleet": "State that pickers share",
    "endpoints": "Endpoints",
    "endpoint": "Endpoints from discovery",
    "data": "Data keys",
    "keys": "Values of endpick's data keys",
    "state": "State of a request",
    "request": "Requests",
    "metrics": "Prometheus pages and labels",
    "fast_metrics": "Cheap metrics",
    "errors": "Errors",
}
"""Titles, in the order of the page; other modules follow under their own names."""

HIDDEN = frozenset({"hookimpl"})
"""Shown on another page."""


def page() -> str:
    """The page."""
    found = {module.__name__.rpartition(".")[2]: definitions(module) for module in _modules()}
    wanted = {name for name in endpick.api.__all__ if not isinstance(getattr(endpick.api, name), DataKey)} - HIDDEN
    if missing := wanted.difference(*found.values()):
        raise SystemExit(f"endpick.api exports {', '.join(sorted(missing))}, which no page documents")
    for module in MODULES_FOR_PLUGINS:
        wanted |= {name for name, (_, doc) in found[module].items() if doc and name[0].isupper() and not name.isupper()}
    sections = {module: [render(name, *each) for name, each in names.items() if name in wanted] for module, names in found.items()}
    return markdown_page(
        "Plugin API",
        "Everything a plugin may import: from `endpick.api`, or from the module in a heading.",
        *chain.from_iterable((_title(module), *parts) for module, parts in sections.items() if parts),
        "The data keys themselves are listed under [Data keys](data-keys.md).",
    )


def _modules() -> list[ModuleType]:
    names = {found.name for found in pkgutil.iter_modules(endpick.api.__path__)}
    ordered = (*(name for name in MODULES if name in names), *sorted(names - MODULES.keys()))
    return [importlib.import_module(f"endpick.api.{name}") for name in ordered]


def _title(module: str) -> str:
    title = f"## {MODULES.get(module, module.replace('_', ' ').capitalize())}"
    return f"{title}: `endpick.api.{module}`" if module in MODULES_FOR_PLUGINS else title
