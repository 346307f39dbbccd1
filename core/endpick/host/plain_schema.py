"""JSON Schema as nearly every plugin uses it, judged without the library that knows all of it.

Importing that library, and having it judge a dozen schemas by their metaschema, would be a fifth of the start of `endpick serve`. What
is plain and fine is told here; all else (a mistake, an unusual keyword, a reference to elsewhere) is left to the library, whose words are
shown. So this module may say no to what is fine, and must never say yes to what is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from typing import Any, TypeAlias, cast

from endpick.api.plugin import HAS_NO_EFFECT

Schema: TypeAlias = dict[str, object]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS = "#/$defs/"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_DEEPEST = 50
"""Schemas that go deeper are not plain; among them those that refer to themselves without end."""


def is_plainly_valid(schema: object) -> bool:
    """Whether this surely is a valid schema, complete in itself."""
    return _is_schema(schema, schema, 0)


def plainly_satisfies(schema: Schema, value: object) -> bool:
    """Whether the schema surely is valid and the value as it wants it."""
    return is_plainly_valid(schema) and _satisfies(schema, schema, value, 0)


def _is_schema(root: object, schema: object, depth: int) -> bool:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return False
    return all((judge := _FORMS.get(keyword)) is not None and judge(root, said, depth + 1) for keyword, said in schema.items())


def _is_number(said: object) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool)


def _is_count(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and said >= 0


def _is_pattern(said: object) -> bool:
    try:
        return isinstance(said, str) and re.compile(said) is not None
    except re.error:
        return False


def _are_names(said: object) -> bool:
    return isinstance(said, list) and all(isinstance(name, str) for name in said) and len(set(said)) == len(said)


def _are_schemas(root: object, said: object, depth: int) -> bool:
    return isinstance(said, dict) and all(isinstance(name, str) and _is_schema(root, one, depth) for name, one in said.items())


def _are_choices(root: object, said: object, depth: int) -> bool:
    return isinstance(said, list) and bool(said) and all(_is_schema(root, one, depth) for one in said)


def _refers_to_a_definition(root: object, said: object, _depth: int) -> bool:
    return isinstance(root, dict) and isinstance(said, str) and isinstance(_definition(root, said), dict)


def _definition(root: Schema, reference: str) -> object:
    name = reference.removeprefix(_DEFINITIONS)
    definitions = root.get("$defs")
    if not reference.startswith(_DEFINITIONS) or _PLAIN_NAME.fullmatch(name) is None or not isinstance(definitions, dict):
        return None
    return definitions.get(name)


_Form: TypeAlias = Callable[[object, object, int], bool]


def _alone(judge: Callable[[object], bool]) -> _Form:
    return lambda _root, said, _depth: judge(said)


_FORMS: Mapping[str, _Form] = {
    "$schema": lambda _root, said, depth: said == _DIALECT and depth == 1,
    "$defs": lambda root, said, depth: depth == 1 and _are_schemas(root, said, depth),
    "$ref": _refers_to_a_definition,
    "title": _alone(lambda said: isinstance(said, str)),
    "description": _alone(lambda said: isinstance(said, str)),
    "deprecated": _alone(lambda said: isinstance(said, bool)),
    "default": _alone(lambda _said: True),
    "examples": _alone(lambda said: isinstance(said, list)),
    HAS_NO_EFFECT: _alone(lambda said: isinstance(said, str)),
    "type": _alone(lambda said: isinstance(said, str) and said in _TYPES),
    "properties": _are_schemas,
    "additionalProperties": lambda root, said, depth: isinstance(said, bool) or _is_schema(root, said, depth),
    "required": _alone(_are_names),
    "items": _is_schema,
    "anyOf": _are_choices,
    "enum": _alone(lambda said: isinstance(said, list)),
    "const": _alone(lambda _said: True),
    "minimum": _alone(_is_number),
    "maximum": _alone(_is_number),
    "exclusiveMinimum": _alone(_is_number),
    "exclusiveMaximum": _alone(_is_number),
    "minLength": _alone(_is_count),
    "maxLength": _alone(_is_count),
    "minItems": _alone(_is_count),
    "maxItems": _alone(_is_count),
    "pattern": _alone(_is_pattern),
}
"""What makes each keyword well-formed."""

_TYPES: Mapping[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


def _satisfies(root: Schema, schema: Schema, value: object, depth: int) -> bool:
    if depth > _DEEPEST:
        return False
    for keyword, said in schema.items():
        judge = _RULES.get(keyword)
        if judge is None or not judge(root, schema, said, value, depth + 1):
            return False
    return True


def _has_properties(root: Schema, _schema: Schema, said: Mapping[str, Schema], value: object, depth: int) -> bool:
    return not isinstance(value, dict) or all(_satisfies(root, said[name], value[name], depth) for name in said if name in value)


def _has_no_others(root: Schema, schema: Schema, said: bool | Schema, value: object, depth: int) -> bool:
    if not isinstance(value, dict) or said is True:
        return True
    known = cast("Schema", schema.get("properties", {}))
    others = [one for name, one in value.items() if not isinstance(name, str) or name not in known]
    return all(isinstance(said, dict) and _satisfies(root, said, one, depth) for one in others)


def _is_one_of(allowed: list[object], value: object) -> bool:
    return isinstance(value, str) and any(isinstance(one, str) and one == value for one in allowed)


_Rule: TypeAlias = Callable[[Schema, Schema, Any, Any, int], bool]
"""Given the whole schema, the part that says it, what is said, the value, and how deep this is."""


def _number(judge: Callable[[float, float], bool]) -> _Rule:
    return lambda _root, _schema, said, value, _depth: not _is_number(value) or judge(said, value)


def _sized(kind: type[Sized], judge: Callable[[int, int], bool]) -> _Rule:
    return lambda _root, _schema, said, value, _depth: not isinstance(value, kind) or judge(said, len(value))


_SAY_NOTHING_OF_VALUES = ("$schema", "$defs", "title", "description", "deprecated", "default", "examples")
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_SAY_NOTHING_OF_VALUES, lambda *_anything: True),
    "$ref": lambda root, _schema, said, value, depth: _satisfies(root, cast("Schema", _definition(root, said)), value, depth),
    "type": lambda _root, _schema, said, value, _depth: _TYPES[said](value),
    "properties": _has_properties,
    "additionalProperties": _has_no_others,
    "required": lambda _root, _schema, said, value, _depth: not isinstance(value, dict) or all(name in value for name in said),
    "items": lambda root, _schema, said, value, depth: (
        not isinstance(value, list) or all(_satisfies(root, said, one, depth) for one in value)
    ),
    "anyOf": lambda root, _schema, said, value, depth: any(_satisfies(root, one, value, depth) for one in said),
    "enum": lambda _root, _schema, said, value, _depth: _is_one_of(said, value),
    "const": lambda _root, _schema, said, value, _depth: _is_one_of([said], value),
    "minimum": _number(lambda said, value: value >= said),
    "maximum": _number(lambda said, value: value <= said),
    "exclusiveMinimum": _number(lambda said, value: value > said),
    "exclusiveMaximum": _number(lambda said, value: value < said),
    "minLength": _sized(str, lambda said, length: length >= said),
    "maxLength": _sized(str, lambda said, length: length <= said),
    "minItems": _sized(list, lambda said, length: length >= said),
    "maxItems": _sized(list, lambda said, length: length <= said),
    "pattern": lambda _root, _schema, said, value, _depth: not isinstance(value, str) or re.search(said, value) is not None,
}
"""What each keyword asks of a value."""
