"""A plugin's parameters as JSON Schema: generated from its model or written by its author, closed, checked, never fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from endpick.api.duration import DURATION_SCHEMA, duration_text
from endpick.api.plugin import Parameters, Plugin
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.discovery import Candidate
from endpick.plugins.importing import describe, trace_notes
from endpick.plugins.kinds import parameters_model
from endpick.plugins.resolution import Reference

if TYPE_CHECKING:
    from referencing._core import Resolver

Schema: TypeAlias = dict[str, object]

_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "additionalProperties", "unevaluatedProperties"})


def schemas_of(reference: Reference, candidate: Candidate, plugin: type[Plugin[Any]]) -> tuple[Schema, ...] | Diagnostic:
    """The schemas that a `parameters:` block must satisfy, each valid and complete in itself; else what is wrong with them.

    An author who gives a schema and no model of their own is judged by the schema alone.
    """
    try:
        schemas = _written(plugin)
    except Exception as error:
        return _invalid(reference, candidate, f"cannot be generated: {describe(error)}", trace_notes(error))
    for schema in schemas:
        fault = _schema_fault(reference, candidate, schema)
        if fault is not None:
            return fault
    return schemas


def own_model(plugin: type[Plugin[Any]]) -> type[Parameters] | None:
    """The model of the parameters, unless the author gives a schema and no model of their own."""
    model = parameters_model(plugin)
    assert isinstance(model, type)
    assert issubclass(model, Parameters)
    return model if model is not Parameters or plugin.parameters_schema is None else None


def validator_of(schema: Schema) -> Validator:
    """A validator that fetches nothing."""
    return _dialect(schema)(schema, registry=Registry())


def _written(plugin: type[Plugin[Any]]) -> tuple[Schema, ...]:
    model = own_model(plugin)
    generated = () if model is None else (_closed(model.model_json_schema()),)
    given = () if plugin.parameters_schema is None else (_closed_at_top(json.loads(json.dumps(plugin.parameters_schema))),)
    return (*generated, *given)


def _closed(schema: Schema) -> Schema:
    """A generated schema in which nested models, too, refuse names they do not know; pydantic alone would ignore them."""
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, Mapping)
    for definition in (schema, *definitions.values()):
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
            _write_durations(definition["properties"].values())
    return schema


def _write_durations(properties: Iterable[Schema]) -> None:
    """Give durations the default that an operator would write; pydantic knows it in seconds."""
    for one in properties:
        default = one.get("default")
        if one.get("pattern") == DURATION_SCHEMA["pattern"] and isinstance(default, int | float):
            one["default"] = duration_text(default)


def _closed_at_top(schema: Schema) -> Schema:
    """A given schema that refuses unknown names, unless its author decided otherwise or composed it of several."""
    if "properties" in schema and not _COMPOSED & set(schema):
        return {**schema, "additionalProperties": False}
    return schema


def _dialect(schema: Schema) -> type[Validator]:
    return validator_for(schema, default=Draft202012Validator)


def _is_unknown_dialect(schema: Schema) -> bool:
    return "$schema" in schema and validator_for(schema, default=None) is None  # type: ignore[arg-type]


def _schema_fault(reference: Reference, candidate: Candidate, schema: object) -> Diagnostic | None:
    if not isinstance(schema, dict):
        return _invalid(reference, candidate, "is not an object")
    if _is_unknown_dialect(schema):
        return _invalid(reference, candidate, f"is written in an unknown dialect, {schema['$schema']!r}")
    validator: Any = _dialect(schema)  # its protocol lacks `format_checker`, which finds invalid patterns
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
    except SchemaError as error:
        return _invalid(reference, candidate, f"is invalid at {error.json_path}: {error.message}")
    for target in _unresolvable(schema):
        if not target.startswith("#"):
            return _remote(reference, candidate, target)
        return _invalid(reference, candidate, f"refers to '{target}', which it does not contain")
    return None


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


def _remote(reference: Reference, candidate: Candidate, target: str) -> Diagnostic:
    return reference.diagnostic(
        Code.E0404,
        f"the parameter schema of '{candidate.type}' from {candidate.origin} refers to another document, '{target}'",
        candidate,
        help=f"ask the author of {candidate.distribution} to put what it needs under `$defs`; endpick never fetches a schema",
    )


def _invalid(reference: Reference, candidate: Candidate, reason: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return reference.diagnostic(
        Code.E0405,
        f"the parameter schema of '{candidate.type}' from {candidate.origin} {reason}",
        candidate,
        help=f"the configuration is not to blame; report it to the author of {candidate.distribution}, or install another release",
        notes=notes,
    )
