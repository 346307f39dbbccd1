"""JSON Schemas of plugin parameters: generated from the model or written by the author; checked with jsonschema, never fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from endpick.api.duration import DURATION_SCHEMA, duration_text
from endpick.api.plugin import Parameters, Plugin
from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.importing import describe, trace_notes
from endpick.host.kinds import parameters_model
from endpick.host.resolution import Reference

if TYPE_CHECKING:
    from referencing._core import Resolver

Schema: TypeAlias = dict[str, object]

_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "additionalProperties", "unevaluatedProperties"})


def schemas_of(plugin: type[Plugin[Any]]) -> tuple[Schema, ...]:
    """The schemas a `parameters:` block must satisfy; the last one is for display.

    If the author gives a schema and no model, the schema alone counts.
    """
    model = own_model(plugin)
    generated = () if model is None else (_generated(model),)
    given = () if plugin.parameters_schema is None else (_closed_at_top(json.loads(json.dumps(plugin.parameters_schema))),)
    return (*generated, *given)


def own_model(plugin: type[Plugin[Any]]) -> type[Parameters] | None:
    """The model of the parameters; None if the author gives only a schema."""
    model = parameters_model(plugin)
    assert isinstance(model, type)
    assert issubclass(model, Parameters)
    return model if model is not Parameters or plugin.parameters_schema is None else None


def schema_errors(schema: Schema, block: Mapping[str, object]) -> Iterator[ValidationError]:
    """Everything in a block that violates a schema."""
    instance: Any = dict(block)
    return iter(_validator(schema)(schema, registry=Registry()).iter_errors(instance))


def fault_of_schemas(reference: Reference, candidate: Candidate, plugin: type[Plugin[Any]]) -> Diagnostic | None:
    """The first mistake in a plugin's schemas: not generated, invalid, or incomplete."""
    try:
        schemas = schemas_of(plugin)
    except PLUGIN_ERRORS as error:
        return _invalid(reference, candidate, f"cannot be generated: {describe(error)}", trace_notes(error))
    return next((fault for schema in schemas if (fault := _schema_fault(reference, candidate, schema)) is not None), None)


@cache
def _generated(model: type[Parameters]) -> Schema:
    """The model's schema. Nested models refuse unknown names too, and durations have defaults as an operator would write them."""
    schema = model.model_json_schema()
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
            _write_durations(definition["properties"].values())
    return schema


def _write_durations(properties: Iterable[Schema]) -> None:
    for one in properties:
        default = one.get("default")
        if one.get("pattern") == DURATION_SCHEMA["pattern"] and isinstance(default, int | float):
            one["default"] = duration_text(default)


def _closed_at_top(schema: Schema) -> Schema:
    """Refuse unknown names unless the author decided otherwise or composed the schema of several."""
    if "properties" in schema and not _COMPOSED & set(schema):
        return {**schema, "additionalProperties": False}
    return schema


def _validator(schema: Schema) -> type[Validator]:
    return validator_for(schema, default=Draft202012Validator)


def _schema_fault(reference: Reference, candidate: Candidate, schema: object) -> Diagnostic | None:
    if not isinstance(schema, dict):
        return _invalid(reference, candidate, "is not an object")
    if "$schema" in schema and validator_for(schema, default=None) is None:  # type: ignore[arg-type]
        return _invalid(reference, candidate, f"is written in an unknown dialect, {schema['$schema']!r}")
    validator: Any = _validator(schema)
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)  # the format checker finds invalid patterns
    except SchemaError as error:
        return _invalid(reference, candidate, f"is invalid at {error.json_path}: {error.message}")
    target = next(_unresolvable(schema), None)
    if target is None:
        return None
    if target.startswith("#"):
        return _invalid(reference, candidate, f"refers to '{target}', which it does not contain")
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
