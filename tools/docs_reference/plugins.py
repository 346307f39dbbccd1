"""reference/plugins.md and a page for each built-in plugin type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

from docs_reference.builtin import builtin_plugins
from docs_reference.examples import example
from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from endpick.api import Scorer
from endpick.api.data import AnyKey
from endpick.cli.describe import REQUIRED, ParameterTable, entry_of, parameter_tables
from endpick.host.kinds import KINDS, payload_of
from endpick.host.loader import LoadedPlugin

_PATTERN = re.compile(r"\bmatches (\S+?)(?=, |$)")
"""A bound that is a regular expression: prose would be read as markup."""


def page() -> str:
    """The index."""
    plugins = sorted(builtin_plugins(), key=lambda loaded: (list(KINDS).index(loaded.kinds[0]), loaded.type))
    rows = ((f"[`{one.type}`](plugins/{one.type}.md)", _kinds(one), one.plugin.stability.value, one.summary) for one in plugins)
    return markdown_page(
        "Built-in plugins",
        "Look up here which plugins come with endpick. The page of each says what it does, its parameters with their defaults and bounds, "
        "the data it reads and writes, and shows it in a configuration. `endpick describe TYPE` says the same of every installed plugin, "
        "other people's too.",
        table(("type", "kind", "stability", "does"), rows),
        "```{toctree}\n:hidden:\n\n" + "\n".join(f"plugins/{one.type}" for one in plugins) + "\n```",
    )


def pages() -> dict[str, str]:
    """The page of each type, by file name."""
    return {f"plugins/{loaded.type}.md": plugin_page(loaded) for loaded in builtin_plugins()}


def plugin_page(loaded: LoadedPlugin) -> str:
    """The page of one type."""
    plugin, payload = loaded.plugin, payload_of(loaded.plugin)
    replaced = f", replaced by [{plugin.replaced_by}]({plugin.replaced_by}.md)" if plugin.replaced_by else ""
    facts = [
        ("Kind", _kinds(loaded)),
        ("Stability", plugin.stability.value + replaced),
        ("Category", plugin.category.value if issubclass(plugin, Scorer) and plugin.category else ""),
        ("Former names", ", ".join(map(code, plugin.aliases))),
        ("Payload", code(payload.__name__) if payload else ""),
    ]
    return markdown_page(
        loaded.type,
        inspect.cleandoc(plugin.__doc__ or ""),
        "\n".join(f"- {name}: {value}" for name, value in facts if value),
        "## Parameters",
        *(_parameters(parameter_tables(loaded)) or ["It has no parameters."]),
        *_data(loaded),
        "## Example",
        *_example(loaded),
    )


def _kinds(loaded: LoadedPlugin) -> str:
    return ", ".join(kind.kind for kind in loaded.kinds)


def _parameters(tables: Iterable[ParameterTable]) -> list[str]:
    parts = []
    for one in tables:
        rows = (
            (
                code(row.name),
                row.type,
                _PATTERN.sub(lambda found: f"matches {code(found[1])}", row.bounds),
                "required" if row.default == REQUIRED else code(row.default),
                row.meaning,
            )
            for row in one.rows
        )
        parts += [f"**{one.name}**: {one.description}"] if one.name else []
        parts.append(table(("parameter", "type", "bounds", "default", "meaning"), rows))
    return parts


def _data(loaded: LoadedPlugin) -> list[str]:
    plugin = loaded.plugin
    uses: tuple[tuple[str, tuple[AnyKey, ...]], ...] = (
        ("reads", plugin.consumes),
        ("may read", plugin.consumes_optional),
        ("writes", plugin.produces),
    )
    rows = [(use, code(key.name), key.scope.value, key.doc) for use, keys in uses for key in keys]
    return ["## Data", table(("", "key", "scope", "meaning"), rows)] if rows else []


def _example(loaded: LoadedPlugin) -> list[str]:
    text = example(loaded)
    if text is None:
        return [f"<!-- yaml: excerpt -->\n```yaml\nplugins:\n{entry_of(loaded)}```"]
    return [f"<!-- yaml: example {loaded.type} -->\n```yaml\n{text}```"]
