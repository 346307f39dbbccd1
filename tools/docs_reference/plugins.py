"""reference/plugins.md: the built-in plugins."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import cast

from docs_reference.builtin import builtin_plugins
from docs_reference.markdown import code, listed, table
from docs_reference.markdown import page as markdown_page
from endpick.api import Scorer
from endpick.plugins.kinds import KINDS, payload_of
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.parameters import parameters_schema

Schema = Mapping[str, object]


def page() -> str:
    """The page."""
    plugins = sorted(builtin_plugins(), key=lambda loaded: (list(KINDS).index(loaded.kinds[0]), loaded.type))
    rows = ((f"[`{loaded.type}`](#{loaded.type})", _kinds(loaded), loaded.summary) for loaded in plugins)
    return markdown_page(
        "Built-in plugins",
        "Look up here what each plugin that comes with endpick does, its parameters with their defaults, and the data it reads and writes. "
        "`endpick describe TYPE` says the same of every installed plugin, other people's too.",
        table(("type", "kind", "does"), rows),
        *(_plugin(loaded) for loaded in plugins),
    )


def _plugin(loaded: LoadedPlugin) -> str:
    plugin, schema, payload = loaded.plugin, parameters_schema(loaded), payload_of(loaded.plugin)
    facts = [
        ("Kind", _kinds(loaded)),
        ("Category", plugin.category.value if issubclass(plugin, Scorer) and plugin.category else ""),
        ("Former names", listed(plugin.aliases) if plugin.aliases else ""),
        ("Payload", code(payload.__name__) if payload else ""),
        ("Reads", listed(key.name for key in plugin.consumes) if plugin.consumes else ""),
        ("May read", listed(key.name for key in plugin.consumes_optional) if plugin.consumes_optional else ""),
        ("Writes", listed(key.name for key in plugin.produces) if plugin.produces else ""),
    ]
    return "\n\n".join(
        (
            f"({loaded.type})=\n## {loaded.type}",
            inspect.cleandoc(loaded.plugin.__doc__ or ""),
            "\n".join(f"- {name}: {value}" for name, value in facts if value),
            *_parameters(schema),
        )
    )


def _kinds(loaded: LoadedPlugin) -> str:
    return ", ".join(kind.kind for kind in loaded.kinds)


def _parameters(schema: Schema) -> list[str]:
    if not schema.get("properties"):
        return ["It has no parameters."]
    parts = [_table(schema)]
    for name, definition in cast("Mapping[str, Schema]", schema.get("$defs", {})).items():
        if definition.get("properties"):
            parts += [f"**{name}**: {_one_line(definition.get('description'))}", _table(definition)]
    return parts


def _table(schema: Schema) -> str:
    required = cast("list[str]", schema.get("required", []))
    rows = (
        (code(name), _type(one), "required" if name in required else _default(one), _one_line(one.get("description")))
        for name, one in cast("Mapping[str, Schema]", schema["properties"]).items()
    )
    return table(("parameter", "type", "default", "meaning"), rows)


def _default(one: Schema) -> str:
    return code(json.dumps(one["default"])) if one.get("default") is not None else ""


def _type(one: Schema) -> str:
    if "enum" in one:
        return " or ".join(code(json.dumps(choice)) for choice in cast("list[object]", one["enum"]))
    if "const" in one:
        return code(json.dumps(one["const"]))
    alternatives = one.get("anyOf") or one.get("oneOf")
    if isinstance(alternatives, list):
        return " or ".join(_type(each) for each in alternatives if each.get("type") != "null")
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if isinstance(one.get("items"), dict):
        return f"list of {_type(cast('Schema', one['items']))}"
    return "duration" if "examples" in one and one.get("type") == "string" else str(one.get("type", "any"))


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())
