"""JSON Schema 2020-12, as pydantic and plugins write it, to draft-07, which editors understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Schema = Mapping[str, object]

_CARRY_DATA = frozenset({"const", "default", "enum", "examples"})
_MAP_NAMES = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_DROPPED = frozenset({"$schema", "$id", "title"})
_RENAMED = {"$defs": "definitions", "dependentRequired": "dependencies", "dependentSchemas": "dependencies"}


def to_draft07(schema: Schema, root: str = "#") -> dict[str, object]:
    """The same schema in draft-07, to stand at the JSON pointer `root` of a larger one.

    References into itself are moved along. Titles are dropped, since generated ones only repeat the field's name.
    """
    return _convert(schema, root)


def _convert(schema: Schema, root: str) -> dict[str, object]:
    converted: dict[str, object] = {}
    for keyword, value in schema.items():
        if keyword in _DROPPED and isinstance(value, str):
            continue
        name = _RENAMED.get(keyword, keyword)
        converted[name] = _convert_value(keyword, value, root)
    if "description" in converted:
        converted["markdownDescription"] = converted["description"]
    return _without_siblings(_tuple_items(converted))


def _convert_value(keyword: str, value: object, root: str) -> object:
    if keyword == "$ref" and isinstance(value, str):
        return f"{root}{value.removeprefix('#').replace('/$defs/', '/definitions/')}" if value.startswith("#") else value
    if keyword in _CARRY_DATA:
        return value
    if isinstance(value, Mapping):
        if keyword in _MAP_NAMES:
            return {name: _convert(item, root) if isinstance(item, Mapping) else item for name, item in value.items()}
        return _convert(value, root)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_convert(item, root) if isinstance(item, Mapping) else item for item in value]
    return value


def _tuple_items(schema: dict[str, object]) -> dict[str, object]:
    if "prefixItems" not in schema:
        return schema
    others = {keyword: value for keyword, value in schema.items() if keyword not in ("prefixItems", "items")}
    return {**others, "items": schema["prefixItems"], "additionalItems": schema.get("items", True)}


def _without_siblings(schema: dict[str, object]) -> dict[str, object]:
    """Draft-07 ignores whatever stands beside `$ref`."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    reference = schema.pop("$ref")
    others = schema.pop("allOf", [])
    return {**schema, "allOf": [{"$ref": reference}, *(others if isinstance(others, list) else [])]}
