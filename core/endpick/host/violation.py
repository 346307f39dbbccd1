"""Words JSON Schema errors for the author of a `parameters:` block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jsonschema import ValidationError

from endpick.diagnostics import Code, DocumentPath, did_you_mean

_ARTICLES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Violation:
    """One mistake in a `parameters:` block.

    Attributes:
        path: Within the block: the unknown key, or the mapping that misses a key.
        predicate: Follows the parameter's name in messages: `must be an integer, not 'many'`.
        name: The unknown or missing key.
    """

    code: Code
    path: DocumentPath
    predicate: str
    name: str | None = None
    help: str | None = None


def violations(errors: Iterable[ValidationError]) -> Iterator[Violation]:
    """JSON Schema errors as violations; for `anyOf` and `oneOf` the alternative that its author most likely meant."""
    for error in errors:
        yield from _explained(error)


def shown(value: object) -> str:
    """A value as messages quote it: shortened, in the notation of the file."""
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _explained(error: ValidationError) -> Iterator[Violation]:
    path: DocumentPath = tuple(error.absolute_path)
    if _is_about_a_name(error):
        yield Violation(Code.E0402, (*path, str(error.instance)), "is not allowed as a name", str(error.instance))
        return
    special = _SPECIAL.get(str(error.validator))
    if special is not None:
        yield from special(error, path)
        return
    worded = _PREDICATES.get(str(error.validator))
    predicate = worded(error.validator_value, error.instance) if worded else f"is not allowed: {error.message}"
    yield Violation(Code.E0401, path, predicate, help=_close_choice(error))


def _close_choice(error: ValidationError) -> str | None:
    if error.validator != "enum" or not isinstance(error.instance, str):
        return None
    choices: Any = error.validator_value
    return did_you_mean(error.instance, (choice for choice in choices if isinstance(choice, str)))


def _unknown(error: ValidationError, path: DocumentPath) -> Iterator[Violation]:
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    known, given = set(schema.get("properties", {})), _mapping(error.instance)
    for name in given:
        # Only jsonschema knows which names patterns and nested schemas cover; its message quotes the rest.
        if name not in known and repr(name) in error.message:
            yield Violation(Code.E0402, (*path, name), "is not known", name, did_you_mean(name, known - set(given)))


def _is_about_a_name(error: ValidationError) -> bool:
    """True for an error from `propertyNames`, whose instance is a key."""
    *_, grandparent, parent, _ = ("", "", *error.absolute_schema_path)
    return parent == "propertyNames" and grandparent != "properties"


def _missing(error: ValidationError, path: DocumentPath) -> Iterator[Violation]:
    # jsonschema reports each missing name by itself, and names it only in the message.
    names: Any = error.validator_value
    for name in names:
        if name not in _mapping(error.instance) and error.message.startswith(repr(name)):
            yield Violation(Code.E0406, path, "is missing", name)


def _no_choice_fits(error: ValidationError, path: DocumentPath) -> Iterator[Violation]:
    branches = _branches(error)
    wanted = _discriminated(error, branches)
    plausible = wanted or [branch for branch in branches if not _is_type_mismatch(branch, error)]
    if len(plausible) == 1:
        yield from violations(plausible[0])
    elif not plausible and branches:
        types: list[Any] = [branch[0].validator_value for branch in branches]
        expected = list(dict.fromkeys(_expected(type_names) for type_names in types))
        yield Violation(Code.E0401, path, f"must be {_either(expected)}, not {shown(error.instance)}")
    elif branches:
        ways = (next(violations([branch[0]])) for branch in plausible)
        predicates = list(dict.fromkeys(way.predicate for way in ways))
        yield Violation(Code.E0401, path, f"has none of the allowed forms: {_either(predicates)}")
    else:
        yield Violation(Code.E0401, path, "has several of the allowed forms at once")


def _branches(error: ValidationError) -> list[list[ValidationError]]:

    def branch(inner: ValidationError) -> int:
        return int(inner.relative_schema_path[0])

    return [list(errors) for _, errors in groupby(sorted(error.context, key=branch), key=branch)]


def _discriminated(error: ValidationError, branches: Sequence[list[ValidationError]]) -> list[list[ValidationError]]:
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    tag = schema.get("discriminator", {}).get("propertyName")
    if tag is None or not isinstance(error.instance, Mapping) or tag not in error.instance:
        return []
    return [branch for branch in branches if not any(list(inner.path)[-1:] == [tag] for inner in branch)]


def _is_type_mismatch(branch: Sequence[ValidationError], error: ValidationError) -> bool:
    return len(branch) == 1 and branch[0].validator == "type" and len(branch[0].absolute_path) == len(error.absolute_path)


def _mapping(instance: object) -> Mapping[str, object]:
    return instance if isinstance(instance, Mapping) else {}


def _expected(types: str | Sequence[str]) -> str:
    names = [types] if isinstance(types, str) else list(types)
    return _either([_ARTICLES.get(name, name) for name in names])


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_SPECIAL: Mapping[str, Callable[[ValidationError, DocumentPath], Iterator[Violation]]] = {
    "additionalProperties": _unknown,
    "unevaluatedProperties": _unknown,
    "required": _missing,
    "anyOf": _no_choice_fits,
    "oneOf": _no_choice_fits,
}

_PREDICATES: Mapping[str, Callable[[Any, Any], str]] = {
    "type": lambda types, value: f"must be {_expected(types)}, not {shown(value)}",
    "enum": lambda choices, value: f"must be {_either([shown(choice) for choice in choices])}, not {shown(value)}",
    "const": lambda only, value: f"must be {shown(only)}, not {shown(value)}",
    "minimum": lambda least, value: f"must be at least {least}, not {value}",
    "maximum": lambda most, value: f"must be at most {most}, not {value}",
    "exclusiveMinimum": lambda least, value: f"must be greater than {least}, not {value}",
    "exclusiveMaximum": lambda most, value: f"must be less than {most}, not {value}",
    "multipleOf": lambda factor, value: f"must be a multiple of {factor}, not {value}",
    "minLength": lambda least, value: f"must have at least {least} characters, not {len(value)}",
    "maxLength": lambda most, value: f"must have at most {most} characters, not {len(value)}",
    "minItems": lambda least, value: f"must have at least {least} items, not {len(value)}",
    "maxItems": lambda most, value: f"must have at most {most} items, not {len(value)}",
    "minProperties": lambda least, value: f"must have at least {least} entries, not {len(value)}",
    "maxProperties": lambda most, value: f"must have at most {most} entries, not {len(value)}",
    "uniqueItems": lambda _, value: f"must not hold the same item twice, as {shown(value)} does",
    "pattern": lambda pattern, value: f"must match the pattern {pattern}, unlike {shown(value)}",
}
