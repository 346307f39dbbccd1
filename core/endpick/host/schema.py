"""Generates and validates JSON Schemas of parameters, and words errors. Fetches no schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from jsonschema import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from endpick.api.plugin import A_DURATION, DURATION_SCHEMA, Parameters, Plugin, duration_text
from endpick.diagnostics import Code, Diagnostic, DocumentPath, did_you_mean
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes
from endpick.host.kinds import parameters_model
from endpick.host.resolution import Reference

if TYPE_CHECKING:
    from referencing._core import Resolver


Schema: TypeAlias = dict[str, object]

_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "additionalProperties", "unevaluatedProperties"})


def schemas_of(plugin: type[Plugin[Any]]) -> tuple[Schema, ...]:
    """Return the schemas of a `parameters:` block, the last for display; without a model, only the author's."""
    model = own_model(plugin)
    generated = () if model is None else (_generated(model),)
    given = () if plugin.parameters_schema is None else (_closed_at_top(json.loads(json.dumps(plugin.parameters_schema))),)
    return (*generated, *given)


def own_model(plugin: type[Plugin[Any]]) -> type[Parameters] | None:
    """Return the parameters model of a plugin, or None if it has a JSON Schema only."""
    model = parameters_model(plugin)
    assert isinstance(model, type)
    assert issubclass(model, Parameters)
    return model if model is not Parameters or plugin.parameters_schema is None else None


def schema_errors(schema: Schema, block: Mapping[str, object]) -> Iterator[ValidationError]:
    """Validate a block; yields the errors of the `jsonschema` library."""
    instance: Any = dict(block)
    return iter(validator_for(schema, default=Draft202012Validator)(schema, registry=Registry()).iter_errors(instance))


def fault_of_schemas(reference: Reference, candidate: Candidate, plugin: type[Plugin[Any]]) -> Diagnostic | None:
    """Return the first mistake in a plugin's schemas, or None."""
    try:
        schemas = schemas_of(plugin)
    except PLUGIN_ERRORS as error:
        return _invalid(reference, candidate, f"cannot be generated: {describe_error(error)}", trace_notes(error))
    return next((fault for schema in schemas if (fault := _schema_fault(reference, candidate, schema)) is not None), None)


@cache
def _generated(model: type[Parameters]) -> Schema:
    """Closes nested models, too, and writes default durations as Go durations."""
    schema = model.model_json_schema()
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
            _write_durations(definition["properties"].values())
    return schema


def _write_durations(properties: Iterable[Schema]) -> None:
    for described in properties:
        default = described.get("default")
        if described.get("pattern") == DURATION_SCHEMA["pattern"] and isinstance(default, int | float):
            described["default"] = duration_text(default)


def _closed_at_top(schema: Schema) -> Schema:
    """Refuses unknown names, unless the author decided this or composed several schemas."""
    if "properties" in schema and not _COMPOSED & set(schema):
        return {**schema, "additionalProperties": False}
    return schema


def _schema_fault(reference: Reference, candidate: Candidate, schema: object) -> Diagnostic | None:
    if not isinstance(schema, dict):
        return _invalid(reference, candidate, "is not an object")
    reason, target = _mistake(json.dumps(schema, default=str))
    if target is None or target.startswith("#"):
        return _invalid(reference, candidate, reason) if reason else None
    return reference.diagnostic(
        Code.E0404,
        f"the parameter schema of '{candidate.type}' from {candidate.origin} {reason}",
        candidate,
        help=f"ask the author of {candidate.distribution} to put what it needs under `$defs`; endpick never fetches a schema",
    )


@cache
def _mistake(text: str) -> tuple[str, str | None]:
    """The mistake in a schema and the reference without a target, if any; cached for reloads."""
    schema: Schema = json.loads(text)
    if "$schema" in schema and validator_for(schema, default=None) is None:  # type: ignore[arg-type]
        return f"is written in an unknown dialect, {schema['$schema']!r}", None
    validator: Any = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)  # finds invalid patterns
    except SchemaError as error:
        return f"is invalid at {error.json_path}: {error.message}", None
    target = next(_unresolvable(schema), None)
    if target is None:
        return "", None
    inside = target.startswith("#")
    return (f"refers to '{target}', which it does not contain" if inside else f"refers to another document, '{target}'"), target


def _invalid(reference: Reference, candidate: Candidate, reason: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return reference.diagnostic(
        Code.E0405,
        f"the parameter schema of '{candidate.type}' from {candidate.origin} {reason}",
        candidate,
        help=f"the configuration is not to blame; report it to the author of {candidate.distribution}, or install another release",
        notes=notes,
    )


def _unresolvable(schema: Schema) -> Iterator[str]:
    resource: Resource[object] = Resource.from_contents(schema, default_specification=DRAFT202012)
    registry: Registry[object] = Registry()
    yield from _unresolvable_in(resource, registry.resolver_with_root(resource))


def _unresolvable_in(resource: Resource[object], resolver: Resolver[object]) -> Iterator[str]:
    contents = resource.contents
    if isinstance(contents, Mapping):
        for target in (contents.get("$ref"), contents.get("$dynamicRef")):
            if isinstance(target, str) and not _resolves(resolver, target):
                yield target
    for inner in resource.subresources():
        yield from _unresolvable_in(inner, resolver.in_subresource(inner))


def _resolves(resolver: Resolver[object], target: str) -> bool:
    try:
        resolver.lookup(target)
    except (Unresolvable, NoSuchResource):
        return False
    return True


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
    """A mistake in a `parameters:` block."""

    code: Code
    path: DocumentPath  # the unknown key, or the mapping that misses a key
    predicate: str  # after the parameter's name: `must be an integer, not 'many'`
    name: str | None = None  # the unknown or missing key
    help: str | None = None


def violations(errors: Iterable[ValidationError]) -> Iterator[Violation]:
    """Convert JSON Schema errors; of `anyOf` and `oneOf`, the likeliest alternative counts."""
    for error in errors:
        yield from _explained(error)


def _shown(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _explained(error: ValidationError) -> Iterator[Violation]:
    path: DocumentPath = tuple(error.absolute_path)
    if _is_about_a_name(error):
        yield Violation(Code.E0402, (*path, str(error.instance)), "is not allowed as a name", str(error.instance))
        return
    if error.validator in ("type", "pattern") and _is_of_duration(error):
        yield Violation(Code.E0401, path, f"must be {A_DURATION}, not {_shown(error.instance)}", help=_with_a_unit(error.instance))
        return
    special = _SPECIAL.get(str(error.validator))
    if special is not None:
        yield from special(error, path)
        return
    worded = _PREDICATES.get(str(error.validator))
    predicate = worded(error.validator_value, error.instance) if worded else f"is not allowed: {error.message}"
    is_choice = error.validator == "enum" and isinstance(error.instance, str)
    choices: Any = error.validator_value if is_choice else ()
    close = did_you_mean(str(error.instance), (choice for choice in choices if isinstance(choice, str))) if is_choice else None
    yield Violation(Code.E0401, path, predicate, help=close)


def _unknown(error: ValidationError, path: DocumentPath) -> Iterator[Violation]:
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    known, given = set(schema.get("properties", {})), _mapping(error.instance)
    for name in given:
        # Patterns and nested schemas may cover a name: jsonschema's message quotes the others.
        if name not in known and repr(name) in error.message:
            yield Violation(Code.E0402, (*path, name), "is not known", name, did_you_mean(name, known - set(given)))


def _is_about_a_name(error: ValidationError) -> bool:
    *_, grandparent, parent, _ = ("", "", *error.absolute_schema_path)
    return parent == "propertyNames" and grandparent != "properties"


def _missing(error: ValidationError, path: DocumentPath) -> Iterator[Violation]:
    # jsonschema reports each missing name by itself, only in the message.
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
        expected = list(dict.fromkeys(_wanted(branch[0]) for branch in branches))
        advice = _with_a_unit(error.instance) if A_DURATION in expected else None
        yield Violation(Code.E0401, path, f"must be {_either(expected)}, not {_shown(error.instance)}", help=advice)
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


def _is_of_duration(error: ValidationError) -> bool:
    return isinstance(error.schema, Mapping) and error.schema.get("pattern") == DURATION_SCHEMA["pattern"]


def _wanted(error: ValidationError) -> str:
    types: Any = error.validator_value
    return A_DURATION if _is_of_duration(error) else _expected(types)


def _with_a_unit(value: object) -> str | None:
    return f"write '{value}s' if seconds are meant" if isinstance(value, int | float) and not isinstance(value, bool) else None


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
    "type": lambda types, value: f"must be {_expected(types)}, not {_shown(value)}",
    "enum": lambda choices, value: f"must be {_either([_shown(choice) for choice in choices])}, not {_shown(value)}",
    "const": lambda only, value: f"must be {_shown(only)}, not {_shown(value)}",
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
    "uniqueItems": lambda _, value: f"must not hold the same item twice, as {_shown(value)} does",
    "pattern": lambda pattern, value: f"must match the pattern {pattern}, unlike {_shown(value)}",
}
