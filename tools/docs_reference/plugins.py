"""reference/plugins.md and a page for each built-in plugin type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from docs_reference.builtin import builtin_plugins, origin
from docs_reference.examples import example
from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from endpick.api import Stability
from endpick.cli.describe import REQUIRED, ParameterFacts, ParameterTable, entry_of, parameter_tables
from endpick.host.kinds import KINDS, payload_of
from endpick.host.loader import LoadedPlugin

Row = tuple[str, str, str, str]
_LONG = 4  # rows of parameters that only one page lists in full
_NO_EFFECT = "No effect"  # how `endpick.api.ignored` begins a description
_PATTERN = re.compile(r"\bmatches (\S+?)(?=, |$)")


def page() -> str:
    """The index, by kind."""
    by_kind: dict[str, list[LoadedPlugin]] = {facts.kind: [] for facts in KINDS}
    for loaded in builtin_plugins():
        by_kind[loaded.kinds[0].kind].append(loaded)
    return markdown_page(
        "Built-in plugins",
        "All plugin types of endpick's own distributions. `endpick describe TYPE` shows the same for every installed plugin.",
        *(part for kind, plugins in by_kind.items() if plugins for part in _listed(kind, plugins)),
        "```{toctree}\n:hidden:\n\n" + "\n".join(f"plugins/{one.type}" for one in builtin_plugins()) + "\n```",
    )


def _listed(kind: str, plugins: list[LoadedPlugin]) -> tuple[str, str]:
    rows = ((f"[`{one.type}`](plugins/{one.type}.md)", one.summary) for one in plugins)
    return f"## {kind.replace('-', ' ').capitalize()}", table(("type", "summary"), rows)


def pages() -> dict[str, str]:
    """The page of each type, by file name."""
    return {f"plugins/{loaded.type}.md": plugin_page(loaded) for loaded in builtin_plugins()}


def plugin_page(loaded: LoadedPlugin) -> str:
    """The page of one type."""
    return markdown_page(
        loaded.type,
        inspect.cleandoc(loaded.plugin.__doc__ or ""),
        _facts(loaded),
        "## Parameters",
        *_parameters(loaded),
        *_data(loaded),
        "## Example",
        _example(loaded),
    )


def _facts(loaded: LoadedPlugin) -> str:
    plugin, payload = loaded.plugin, payload_of(loaded.plugin)
    stability = "" if plugin.stability is Stability.STABLE else plugin.stability.value
    replaced = f", replaced by [{plugin.replaced_by}]({plugin.replaced_by}.md)" if plugin.replaced_by else ""
    facts = [
        ("Kind", ", ".join(kind.kind for kind in loaded.kinds)),
        ("Stability", stability + replaced),
        ("Install", code(f"pip install {origin(loaded)}") if origin(loaded) != "endpick" else ""),
        ("Former names", ", ".join(map(code, plugin.aliases))),
        ("Payload", code(payload.__name__) if payload else ""),
    ]
    return "\n".join(f"- {name}: {value}" for name, value in facts if value)


def _parameters(loaded: LoadedPlugin) -> list[str]:
    equal = (other for other in builtin_plugins() if parameter_tables(other) == parameter_tables(loaded))
    same = min(equal, key=lambda one: (one.plugin.stability is Stability.DEPRECATED, len(one.type))).type
    tables = {one.name: one for one in parameter_tables(loaded)}
    if not tables:
        return ["None."]
    if same != loaded.type and sum(len(one.rows) for one in tables.values()) >= _LONG:
        return [f"The parameters of [`{same}`]({same}.md#parameters)."]
    rows = list(_flattened("", tables, set()))
    used = [row for row in rows if not row[3].startswith(_NO_EFFECT)]
    ignored = [row[0] for row in rows if row[3].startswith(_NO_EFFECT)]
    return [
        table(("parameter", "type", "default", "meaning"), used),
        f"Accepted without effect: {', '.join(ignored)}." if ignored else "",
    ]


def _flattened(prefix: str, tables: dict[str, ParameterTable], shown: set[str], block: str = "") -> Iterator[Row]:
    """The rows of a block, with nested blocks as dotted names; each block once."""
    shown.add(block)
    for fact in tables[block].rows:
        name = prefix + fact.name
        nested = next((one for one in tables if one and re.search(rf"\b{one}\b", fact.type)), None)
        if nested is None or nested in shown or fact.meaning.startswith(_NO_EFFECT):
            yield _row(name, fact)
        else:
            yield from _flattened(f"{name}[]." if fact.type.startswith("list") else f"{name}.", tables, shown, nested)


def _row(name: str, fact: ParameterFacts) -> Row:
    bounds = _PATTERN.sub(lambda found: f"matches {code(found[1])}", fact.bounds)
    default = "required" if fact.default == REQUIRED else code(fact.default)
    return code(name), ", ".join(filter(None, (fact.type, bounds))), default, fact.meaning


def _data(loaded: LoadedPlugin) -> list[str]:
    plugin = loaded.plugin
    uses = (("Reads", plugin.consumes), ("May read", plugin.consumes_optional), ("Writes", plugin.produces))
    lines = [f"- {use}: {', '.join(code(key.name) for key in keys)}" for use, keys in uses if keys]
    return ["## Data keys", "\n".join(lines)] if lines else []


def _example(loaded: LoadedPlugin) -> str:
    text = example(loaded)
    if text is None:
        return f"<!-- yaml: excerpt -->\n```yaml\nplugins:\n{entry_of(loaded)}```"
    return f"<!-- yaml: example {loaded.type} -->\n```yaml\n{text}```"
