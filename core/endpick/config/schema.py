"""The JSON Schema of a configuration, for editors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from endpick.config.gates import DEFAULT_GATES
from endpick.config.model import (
    ALPHA_VERSIONS,
    ENDPICK,
    LLM_D,
    Deprecated,
    EndpickOnly,
    EndpointPickerConfig,
    Part,
    PluginSpec,
    SinceV1,
    part_in,
)
from endpick.config.shape import fields_of

Schema = Mapping[str, object]

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

_GATE = {
    "anyOf": [
        {"enum": list(DEFAULT_GATES)},
        {"type": "string", "pattern": rf"^\s*({'|'.join(DEFAULT_GATES)})\s*(=\s*([01tfTF]|[Tt]rue|TRUE|[Ff]alse|FALSE)\s*)?$"},
    ]
}


def editor_schema(types: Mapping[str, Schema], *, title: str = "endpick configuration") -> dict[str, object]:
    """Return a draft-07 schema of the document.

    `types` maps allowed plugin types to schemas of parameters; if empty, all types are allowed and parameters not checked.
    """
    base = to_draft07(EndpointPickerConfig.model_json_schema(by_alias=True))
    definitions = _mapping(base, "definitions")
    properties = _mapping(base, "properties")
    _mapping(properties, "featureGates")["items"] = _GATE
    for part in _models(EndpointPickerConfig):
        _finish_fields(part, properties if part is EndpointPickerConfig else _mapping(_mapping(definitions, part.__name__), "properties"))
    if types:
        _know_types(_mapping(definitions, PluginSpec.__name__), types)
        definitions.update({_key(type_): _parameters(type_, schema) for type_, schema in sorted(types.items())})
    return {
        "$schema": DRAFT_07,
        "title": title,
        **base,
        "allOf": [
            {"if": _declares((LLM_D,)), "then": _without((EndpickOnly, Deprecated), EndpointPickerConfig)},
            {"if": _declares(ALPHA_VERSIONS), "then": _without((EndpickOnly, SinceV1), EndpointPickerConfig)},
        ],
    }


def _models(part: type[Part]) -> Iterator[type[Part]]:
    yield part
    for field in part.model_fields.values():
        inner = part_in(field.annotation)
        if inner is not None:
            yield from _models(inner)


def _finish_fields(part: type[Part], properties: dict[str, object]) -> None:
    for name, field in fields_of(part).items():
        schema = _mapping(properties, name)
        if not field.is_required():
            properties[name] = schema = _nullable(schema)
        for mark in field.metadata:
            if isinstance(mark, Deprecated):
                schema["deprecationMessage"] = f"use {mark.successor}"


def _nullable(schema: dict[str, object]) -> dict[str, object]:
    choices = schema.get("enum")
    enum = {"enum": [*choices, None]} if isinstance(choices, list) and None not in choices else {}
    return {**schema, **enum, **({"type": [schema["type"], "null"]} if isinstance(schema.get("type"), str) else {})}


def _know_types(plugin: dict[str, object], types: Mapping[str, Schema]) -> None:
    known = sorted(types)
    _mapping(_mapping(plugin, "properties"), "type")["enum"] = known
    plugin["allOf"] = [_parameters_of(type_, types[type_]) for type_ in known]
    plugin["defaultSnippets"] = [
        {"label": type_, "description": types[type_].get("description", ""), "body": {"type": type_}} for type_ in known
    ]


def _parameters_of(type_: str, schema: Schema) -> dict[str, object]:
    # Without `required` an entry without `type` matches every branch.
    then: dict[str, object] = {"properties": {"parameters": {"$ref": f"#/definitions/{_key(type_)}"}}}
    if schema.get("required"):
        then["required"] = ["parameters"]
    return {"if": {"required": ["type"], "properties": {"type": {"const": type_}}}, "then": then}


def _parameters(type_: str, schema: Schema) -> dict[str, object]:
    converted = to_draft07(schema, f"#/definitions/{_key(type_)}")
    # `parameters:` without a value counts as absent.
    return {**converted, "type": "object" if schema.get("required") else ["object", "null"]}


def _key(type_: str) -> str:
    return f"parameters-of-{type_}"


def _declares(versions: tuple[str, ...]) -> dict[str, object]:
    return {"required": ["apiVersion"], "properties": {"apiVersion": {"enum": list(versions)}}}


def _without(marks: tuple[type, ...], part: type[Part]) -> dict[str, object]:
    forbidden: dict[str, object] = {}
    for name, field in fields_of(part).items():
        inner = part_in(field.annotation)
        mark = next((mark for mark in field.metadata if isinstance(mark, marks)), None)
        if mark is not None:
            forbidden[name] = {"type": "null", "errorMessage": f"'{name}' {_way_out(mark)}"}
        elif inner is not None and (nested := _without(marks, inner)):
            forbidden[name] = {"items": nested, **nested}
    return {"properties": forbidden} if forbidden else {}


def _way_out(mark: object) -> str:
    if isinstance(mark, Deprecated):
        return f"is now {mark.successor}"
    return f"needs apiVersion {ENDPICK if isinstance(mark, EndpickOnly) else LLM_D}"


def _mapping(parent: dict[str, object], key: str) -> dict[str, object]:
    value = parent[key]
    if not isinstance(value, dict):
        raise TypeError(f"the generated schema has no mapping at {key}")
    return value


_CARRY_DATA = frozenset({"const", "default", "enum", "examples"})
_MAP_NAMES = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_DROPPED = frozenset({"$schema", "$id", "title"})
_RENAMED = {"$defs": "definitions", "dependentRequired": "dependencies", "dependentSchemas": "dependencies"}


def to_draft07(schema: Schema, root: str = "#") -> dict[str, object]:
    """Convert to draft-07 for the JSON pointer `root` of a larger schema; drops titles."""
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
            return {name: to_draft07(item, root) if isinstance(item, Mapping) else item for name, item in value.items()}
        return to_draft07(value, root)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_draft07(item, root) if isinstance(item, Mapping) else item for item in value]
    return value


def _tuple_items(schema: dict[str, object]) -> dict[str, object]:
    if "prefixItems" not in schema:
        return schema
    others = {keyword: value for keyword, value in schema.items() if keyword not in ("prefixItems", "items")}
    return {**others, "items": schema["prefixItems"], "additionalItems": schema.get("items", True)}


def _without_siblings(schema: dict[str, object]) -> dict[str, object]:
    """Move a `$ref` with siblings into `allOf`: draft-07 ignores siblings."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    reference = schema.pop("$ref")
    others = schema.pop("allOf", [])
    return {**schema, "allOf": [{"$ref": reference}, *(others if isinstance(others, list) else [])]}
