"""Describes the parameters of a plugin type from their JSON Schema, for `describe` and the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from endpick.api.duration import DURATION_SCHEMA
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import parameters_schema

Schema = Mapping[str, object]
REQUIRED = "(required)"


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """One parameter.

    Attributes:
        name: As written in configurations.
        type: In words, or the name of the table of a nested block.
        bounds: In words; empty for none.
        default: As JSON; `(required)` if there is none, empty for null.
        meaning: The description on one line.
    """

    name: str
    type: str
    bounds: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """The parameters of a type, or of a nested block.

    Attributes:
        name: The block; empty for the type itself.
        description: Of the block, on one line.
        rows: In the order of the model.
    """

    name: str
    description: str
    rows: tuple[ParameterFacts, ...]


def parameter_tables(loaded: LoadedPlugin) -> tuple[ParameterTable, ...]:
    """The parameters of a type, then those of each nested block."""
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
            type_of(one),
            ", ".join(bounds_of(one)),
            REQUIRED if name in required else "" if one.get("default") is None else json.dumps(one["default"]),
            _one_line(one.get("description")),
        )
        for name, one in cast("Mapping[str, Schema]", schema.get("properties", {})).items()
    )


def _alternatives(one: Schema) -> list[Schema]:
    given = one.get("anyOf") or one.get("oneOf")
    return [each for each in cast("list[Schema]", given) if each.get("type") != "null"] if isinstance(given, list) else []


def _is_duration(one: Schema) -> bool:
    return one.get("pattern") == DURATION_SCHEMA["pattern"]


def type_of(one: Schema) -> str:
    """The type of a value, in words."""
    if _is_duration(one):
        return "duration"
    if "enum" in one:
        return " or ".join(json.dumps(choice) for choice in cast("list[object]", one["enum"]))
    if "const" in one:
        return json.dumps(one["const"])
    if alternatives := _alternatives(one):
        return " or ".join(dict.fromkeys(map(type_of, alternatives)))
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if isinstance(one.get("items"), dict):
        return f"list of {type_of(cast('Schema', one['items']))}"
    return str(one.get("type", "any"))


_BOUNDS = (
    ("minimum", "{} or more"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("maxLength", "at most {} characters"),
    ("maxItems", "at most {} entries"),
    ("pattern", "matches {}"),
)


def bounds_of(one: Schema) -> Iterator[str]:
    """The bounds of a value, in words."""
    for keyword, words in () if _is_duration(one) else _BOUNDS:
        if keyword in one:
            yield words.format(one[keyword])
    for keyword in ("minLength", "minItems"):
        if least := one.get(keyword):
            yield "not empty" if least == 1 else f"at least {least}"
    for alternative in _alternatives(one):
        yield from bounds_of(alternative)


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())


def entry_of(loaded: LoadedPlugin) -> str:
    """A working entry of `plugins:`, as YAML."""
    parameters = example_from(parameters_schema(loaded))
    written = f"  parameters: {json.dumps(parameters)}\n" if parameters else ""
    return f"- type: {loaded.type}\n{written}"


def example_from(schema: Schema) -> dict[str, object]:
    """A `parameters:` block: the `examples` of the model's schema, else the required parameters with their examples."""
    return cast("dict[str, object]", _value(schema, cast("Mapping[str, Schema]", schema.get("$defs", {}))))


_PLAIN: Mapping[object, object] = {"string": "example", "integer": 1, "number": 1, "boolean": True, "object": {}, "null": None}


def _value(one: Schema, blocks: Mapping[str, Schema]) -> object:
    """A value that fits a schema."""
    examples = one.get("examples")
    if isinstance(examples, list) and examples:
        return examples[0]
    if "$ref" in one:
        return _value(blocks[str(one["$ref"]).rpartition("/")[2]], blocks)
    for keyword in ("const", "default"):
        if one.get(keyword) is not None:
            return one[keyword]
    if isinstance(one.get("enum"), list):
        return cast("list[object]", one["enum"])[0]
    if alternatives := _alternatives(one):
        return _value(alternatives[0], blocks)
    if "properties" in one:
        properties = cast("Mapping[str, Schema]", one["properties"])
        return {name: _value(properties[name], blocks) for name in cast("list[str]", one.get("required", []))}
    if one.get("type") == "array":
        return [_value(cast("Schema", one.get("items", {})), blocks)] if one.get("minItems") else []
    return one.get("minimum", _PLAIN.get(one.get("type"), "example"))
