"""`endpick describe TYPE`: documents one plugin type."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import click
from packaging.requirements import Requirement
from pydantic import Field

from endpick.api.data import AnyKey, Scope
from endpick.api.plugin import DURATION_SCHEMA, Stability
from endpick.api.scheduling import Category, Scorer
from endpick.cli.console import complete_types, json_text, markdown_table
from endpick.cli.output import Output
from endpick.diagnostics import Diagnostic, exit_code_of, render_text, wants_colour
from endpick.diagnostics.tables import table
from endpick.host.discovery import HOST_DISTRIBUTION, discover, import_place, normalise, requirements_of
from endpick.host.kinds import KindName, payload_of
from endpick.host.loader import LoadedPlugin, load
from endpick.host.parameters import parameters_schema
from endpick.host.resolution import Reference, resolve


class DescribedKey(Output):
    """A data key."""

    name: str
    type: str
    scope: Scope
    doc: str


class DescribeOutput(Output):
    """Output of `endpick describe`."""

    type: str
    kinds: list[KindName]
    summary: str
    description: str
    distribution: str
    version: str
    target: str
    file: str
    requires: str = Field(description="Requirement on endpick; empty for built-in plugins.")
    stability: Stability
    category: Category | None
    replaced_by: str | None
    aliases: list[str]
    parameters: dict[str, Any] = Field(description="JSON Schema of the parameters.")
    consumes: list[DescribedKey]
    consumes_optional: list[DescribedKey]
    produces: list[DescribedKey]
    payload: str | None


OUTPUTS = {"describe": DescribeOutput}


@click.command("describe")
@click.argument("plugin_type", metavar="TYPE", shell_complete=complete_types)
@click.option("--from", "distribution", help="The distribution, if several offer the type.")
@click.option("--example", is_flag=True, help="Print a `plugins:` entry with every parameter at its default.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Output format; markdown is the table of parameters for a README.",
)
def command(plugin_type: str, distribution: str | None, example: bool, output: str) -> None:
    """Describe one plugin type: kinds, parameters, data, origin. Imports the plugin."""
    loaded = _load(Reference(plugin_type, distribution=distribution))
    if example:
        click.echo(_example(loaded), nl=False)
    else:
        render = {"text": _text, "json": lambda loaded: json_text(_output(loaded)), "markdown": _markdown}[output]
        click.echo(render(loaded), nl=False)


def _load(reference: Reference) -> LoadedPlugin:
    candidate = resolve(reference, discover())
    diagnostics: tuple[Diagnostic, ...] = (candidate,) if isinstance(candidate, Diagnostic) else ()
    loaded = None
    if not isinstance(candidate, Diagnostic):
        loading = load(candidate, reference)
        loaded, diagnostics = loading.loaded, loading.diagnostics
    if diagnostics:
        click.echo(render_text(diagnostics, colour=wants_colour(sys.stderr)), err=True, nl=False)
    if loaded is None:
        raise SystemExit(exit_code_of(diagnostics))
    return loaded


def _output(loaded: LoadedPlugin) -> DescribeOutput:
    candidate, plugin, payload = loaded.candidate, loaded.plugin, payload_of(loaded.plugin)
    return DescribeOutput(
        type=loaded.type,
        kinds=[kind.kind for kind in loaded.kinds],
        summary=loaded.summary,
        description=loaded.description,
        distribution=candidate.distribution,
        version=candidate.version,
        target=candidate.target,
        file=import_place(candidate.module),
        requires=_requires(loaded),
        stability=plugin.stability,
        category=plugin.category if issubclass(plugin, Scorer) else None,
        replaced_by=plugin.replaced_by,
        aliases=list(plugin.aliases),
        parameters=parameters_schema(loaded),
        consumes=[_key(key) for key in plugin.consumes],
        consumes_optional=[_key(key) for key in plugin.consumes_optional],
        produces=[_key(key) for key in plugin.produces],
        payload=payload.__qualname__ if payload else None,
    )


def _requires(loaded: LoadedPlugin) -> str:
    required = (Requirement(text) for text in requirements_of(loaded.candidate.distribution))
    return next((f"{need.name}{need.specifier}" for need in required if normalise(need.name) == HOST_DISTRIBUTION), "")


def _key(key: AnyKey) -> DescribedKey:
    return DescribedKey(name=key.name, type=key.type.__qualname__, scope=key.scope, doc=key.doc)


def _text(loaded: LoadedPlugin) -> str:
    candidate, shown = loaded.candidate, _output(loaded)
    lines = {
        "kind": ", ".join(shown.kinds),
        "from": candidate.origin + (f" (editable: {candidate.source_path})" if candidate.source_path else ""),
        "class": f"{shown.target} in {shown.file}",
        "requires": "" if candidate.is_builtin else shown.requires or "any endpick",
        "stability": shown.stability + (f", replaced by {shown.replaced_by}" if shown.replaced_by else ""),
        "category": shown.category,
        "former names": ", ".join(shown.aliases),
        "payload": shown.payload,
    }
    head = f"{shown.type}\n\n{shown.description or '(no description)'}\n\n"
    facts = "".join(f"{name + ':':<14}{value}\n" for name, value in lines.items() if value)
    return head + facts + _parameters_block(loaded) + _data_block(shown) + f"\nEXAMPLE\nplugins:\n{entry_of(loaded)}"


def _parameters_block(loaded: LoadedPlugin) -> str:
    blocks = []
    for parameter_table in parameter_tables(loaded):
        rows = [(row.name, row.type, row.bounds, row.default or "null", row.meaning) for row in parameter_table.rows]
        title = f"{parameter_table.name}: {parameter_table.description}\n\n" if parameter_table.name else ""
        blocks.append("\n" + title + table(("PARAMETER", "TYPE", "BOUNDS", "DEFAULT", "DESCRIPTION"), rows))
    return "".join(blocks) or "\nIt has no parameters.\n"


def _markdown(loaded: LoadedPlugin) -> str:
    rows = [(f"`{row.name}`", row.type, _quoted(row.default), row.meaning) for row in _rows(parameters_schema(loaded))]
    return markdown_table(("parameter", "type", "default", "meaning"), rows) if rows else "It has no parameters.\n"


def _quoted(default: str) -> str:
    return default if default == REQUIRED else f"`{default or 'null'}`"


def _data_block(shown: DescribeOutput) -> str:
    uses = {"reads": shown.consumes, "may read": shown.consumes_optional, "writes": shown.produces}
    rows = [(use, key.name, key.type, key.scope, key.doc) for use, keys in uses.items() for key in keys]
    return "\n" + table(("DATA", "KEY", "TYPE", "SCOPE", "MEANING"), rows) if rows else ""


def _example(loaded: LoadedPlugin) -> str:
    rows = _rows(parameters_schema(loaded))
    lines = ["plugins:", f"  - type: {loaded.type}", *(["    parameters:"] if rows else [])]
    for row in rows:
        value = "" if row.default == REQUIRED else row.default or "null"
        lines.append(f"      {row.name}: {value}  # {row.type}; {row.meaning or row.default or 'null'}".rstrip())
    return "\n".join(lines) + "\n"


Schema = Mapping[str, object]
REQUIRED = "(required)"


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """The row of a parameter in a table: type, bounds, default and description as text."""

    name: str
    type: str  # or the name of a nested block's table
    bounds: str  # empty for none
    default: str  # JSON; `(required)` if there is none, empty for null
    meaning: str


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """The parameters of a type or of a nested block."""

    name: str  # empty for the type itself
    description: str
    rows: tuple[ParameterFacts, ...]


def parameter_tables(loaded: LoadedPlugin) -> tuple[ParameterTable, ...]:
    """Return the table of a type, then those of its nested blocks."""
    schema = parameters_schema(loaded)
    tables = [ParameterTable("", "", _rows(schema))]
    for name, definition in cast("Mapping[str, Schema]", schema.get("$defs", {})).items():
        tables.append(ParameterTable(name, _one_line(definition.get("description")), _rows(definition)))
    return tuple(table for table in tables if table.rows)


def _rows(schema: Schema) -> tuple[ParameterFacts, ...]:
    required = cast("list[str]", schema.get("required", []))
    return tuple(
        ParameterFacts(
            name,
            type_of(described),
            ", ".join(bounds_of(described)),
            REQUIRED if name in required else "" if described.get("default") is None else json.dumps(described["default"]),
            _one_line(described.get("description")),
        )
        for name, described in cast("Mapping[str, object]", schema.get("properties", {})).items()
        if isinstance(described, Mapping)
    )


def _alternatives(schema: Schema) -> list[Schema]:
    given = schema.get("anyOf") or schema.get("oneOf")
    return [choice for choice in cast("list[Schema]", given) if choice.get("type") != "null"] if isinstance(given, list) else []


def _is_duration(schema: Schema) -> bool:
    return schema.get("pattern") == DURATION_SCHEMA["pattern"]


def type_of(schema: Schema) -> str:
    """Describe the type of a parameter, such as `list of string`."""
    if _is_duration(schema):
        return "duration"
    if "enum" in schema:
        return " or ".join(json.dumps(choice) for choice in cast("list[object]", schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if alternatives := _alternatives(schema):
        return " or ".join(dict.fromkeys(map(type_of, alternatives)))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if isinstance(schema.get("items"), dict):
        return f"list of {type_of(cast('Schema', schema['items']))}"
    return str(schema.get("type", "any"))


_BOUNDS = (
    ("minimum", "{} or more"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("maxLength", "at most {} characters"),
    ("maxItems", "at most {} entries"),
    ("pattern", "matches {}"),
)


def bounds_of(schema: Schema) -> Iterator[str]:
    """Describe each bound of a parameter, such as `at most 100`."""
    for keyword, words in () if _is_duration(schema) else _BOUNDS:
        if keyword in schema:
            yield words.format(schema[keyword])
    for keyword in ("minLength", "minItems"):
        if least := schema.get(keyword):
            yield "not empty" if least == 1 else f"at least {least}"
    for alternative in _alternatives(schema):
        yield from bounds_of(alternative)


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())


def entry_of(loaded: LoadedPlugin) -> str:
    """Return a working entry of `plugins:`, as YAML."""
    parameters = example_from(parameters_schema(loaded))
    written = f"  parameters: {json.dumps(parameters)}\n" if parameters else ""
    return f"- type: {loaded.type}\n{written}"


def example_from(schema: Schema) -> dict[str, object]:
    """Return the `examples` of the schema, else the required parameters with their examples."""
    return cast("dict[str, object]", _value(schema, cast("Mapping[str, Schema]", schema.get("$defs", {}))))


_PLAIN: Mapping[object, object] = {"string": "example", "integer": 1, "number": 1, "boolean": True, "object": {}, "null": None}


def _value(schema: Schema, blocks: Mapping[str, Schema]) -> object:
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        return examples[0]
    if "$ref" in schema:
        return _value(blocks[str(schema["$ref"]).rpartition("/")[2]], blocks)
    for keyword in ("const", "default"):
        if schema.get(keyword) is not None:
            return schema[keyword]
    if isinstance(schema.get("enum"), list):
        return cast("list[object]", schema["enum"])[0]
    if alternatives := _alternatives(schema):
        return _value(alternatives[0], blocks)
    if "properties" in schema:
        properties = cast("Mapping[str, Schema]", schema["properties"])
        return {name: _value(properties[name], blocks) for name in cast("list[str]", schema.get("required", []))}
    if schema.get("type") == "array":
        return [_value(cast("Schema", schema.get("items", {})), blocks)] if schema.get("minItems") else []
    return schema.get("minimum", _PLAIN.get(schema.get("type"), "example"))
