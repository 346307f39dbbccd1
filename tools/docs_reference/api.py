"""reference/api.md: everything a plugin may import."""

from __future__ import annotations

import importlib
import pkgutil
from itertools import chain
from types import ModuleType

import endpick.api
from docs_reference.markdown import page as markdown_page
from docs_reference.source import Definition, definitions, in_short, render
from endpick.api import DataKey

FIRST_PLUGIN = (
    "Scorer",
    "PerEndpointScorer",
    "Filter",
    "Picker",
    "ScoredEndpoints",
    "Parameters",
    "Plugin",
    "PluginContext",
    "Endpoints",
    "EndpointRow",
    "Endpoint",
    "FloatArray",
    "BoolArray",
    "RowArray",
    "InferenceRequest",
    "Prompt",
    "DataKey",
    "Scope",
    "ScoringState",
    "CycleState",
    "Category",
    "Stability",
    "ConfigurationError",
    "PluginError",
)
"""The names a first plugin needs, in full and in this order."""

MODULES_FOR_PLUGINS = ("flow_control", "discovery", "keys", "fast_metrics")
"""Plugins import these modules, too."""

MODULES = {
    "plugin": "Every plugin",
    "scheduling": "Scheduling",
    "request_control": "Around scheduling",
    "flow_control": "Flow control",
    "datalayer": "Data layer",
    "discovery": "Discovery",
    "endpoints": "Endpoints",
    "endpoint": "Endpoints from discovery",
    "data": "Data keys",
    "keys": "Values of endpick's data keys",
    "state": "State of a request",
    "request": "Requests",
    "metrics": "Prometheus pages and labels",
    "fast_metrics": "Cheap metrics",
    "duration": "Durations",
    "errors": "Errors",
}
"""Titles, in the order of the page; other modules follow under their own names."""

HIDDEN = frozenset({"hookimpl"})
"""Shown on another page."""


def page() -> str:
    """The page."""
    found = {module.__name__.rpartition(".")[2]: definitions(module) for module in _modules()}
    everything = dict(chain.from_iterable(names.items() for names in found.values()))
    exported = {name for name in endpick.api.__all__ if not isinstance(getattr(endpick.api, name), DataKey)} - HIDDEN
    if missing := exported - everything.keys():
        raise SystemExit(f"endpick.api exports {', '.join(sorted(missing))}, which no page documents")
    classes = {name for module in MODULES_FOR_PLUGINS for name, (_, doc) in found[module].items() if doc and name[0].isupper()}
    wanted = exported | {name for name in classes if not name.isupper()}
    first = [name for name in FIRST_PLUGIN if name in wanted]
    rest = wanted.difference(first)
    return markdown_page(
        "Plugin API",
        "Everything a plugin may import: from `endpick.api`, or from the module in a heading.",
        "## A first plugin",
        *(render(name, *everything[name], 3) for name in first),
        *(part for module, names in found.items() for part in _section(module, names, rest)),
        "The data keys themselves are listed under [Data keys](data-keys.md).",
    )


def _modules() -> list[ModuleType]:
    names = {found.name for found in pkgutil.iter_modules(endpick.api.__path__)}
    ordered = (*(name for name in MODULES if name in names), *sorted(names - MODULES.keys()))
    return [importlib.import_module(f"endpick.api.{name}") for name in ordered]


def _section(module: str, names: dict[str, tuple[Definition, str]], wanted: set[str]) -> list[str]:
    parts = [in_short(name, *each, 3) for name, each in names.items() if name in wanted]
    title = MODULES.get(module, module.replace("_", " ").capitalize())
    if module in MODULES_FOR_PLUGINS:
        title += f": `endpick.api.{module}`"
    return [f"## {title}", *parts] if parts else []
