"""A plugin's parameters as JSON Schema: generated from its model or written by its author, closed, checked, never fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from endpick.api.duration import DURATION_SCHEMA, duration_text
from endpick.api.plugin import Parameters, Plugin
from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.importing import describe, trace_notes
from endpick.host.kinds import parameters_model
from endpick.host.plain_schema import Schema, is_plainly_valid
from endpick.host.resolution import Reference

_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "additionalProperties", "unevaluatedProperties"})


def fault_of_schemas(reference: Reference, candidate: Candidate, plugin: type[Plugin[Any]]) -> Diagnostic | None:
    """What is wrong with the schemas of a plugin; None when each can be made, is valid and complete in itself."""
    try:
        schemas = schemas_of(plugin)
    except CALL_FAILURES as error:
        if is_the_hosts(error):
            raise
        return _invalid(reference, candidate, f"cannot be generated: {describe(error)}", trace_notes(error))
    faults = (None if is_plainly_valid(schema) else _schema_fault(reference, candidate, schema) for schema in schemas)
    return next((fault for fault in faults if fault is not None), None)


def schemas_of(plugin: type[Plugin[Any]]) -> tuple[Schema, ...]:
    """The schemas that a `parameters:` block must satisfy; the last is the one to show.

    An author who gives a schema and no model of their own is judged by the schema alone.
    """
    model = own_model(plugin)
    generated = () if model is None else (_generated(model),)
    given = () if plugin.parameters_schema is None else (_closed_at_top(json.loads(json.dumps(plugin.parameters_schema))),)
    return (*generated, *given)


def own_model(plugin: type[Plugin[Any]]) -> type[Parameters] | None:
    """The model of the parameters, unless the author gives a schema and no model of their own."""
    model = parameters_model(plugin)
    assert isinstance(model, type)
    assert issubclass(model, Parameters)
    return model if model is not Parameters or plugin.parameters_schema is None else None


@cache
def _generated(model: type[Parameters]) -> Schema:
    """Once for each model: half of the plugins have no parameters, and so the same one."""
    return _closed(model.model_json_schema())


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


def _schema_fault(reference: Reference, candidate: Candidate, schema: object) -> Diagnostic | None:
    if not isinstance(schema, dict):
        return _invalid(reference, candidate, "is not an object")
    from endpick.host import full_schema  # noqa: PLC0415 - slow to import, and most schemas are plain

    reason = full_schema.fault_of(schema)
    if reason is not None:
        return _invalid(reference, candidate, reason)
    for target in full_schema.unresolvable(schema):
        if not target.startswith("#"):
            return _remote(reference, candidate, target)
        return _invalid(reference, candidate, f"refers to '{target}', which it does not contain")
    return None


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
