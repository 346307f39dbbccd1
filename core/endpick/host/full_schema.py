"""JSON Schema in all its breadth: what is wrong with a schema, and with a value. Slow to import; see `plain_schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from endpick.host.plain_schema import Schema
from endpick.host.violation import Violation, violations

if TYPE_CHECKING:
    from referencing._core import Resolver


def violations_of(schema: Schema, value: object) -> Iterator[Violation]:
    """What is wrong with a value; nothing is fetched."""
    block: Any = value
    return violations(_dialect(schema)(schema, registry=Registry()).iter_errors(block))


def fault_of(schema: Schema) -> str | None:
    """What is wrong with a schema: what follows after `the schema`; None when it is valid."""
    if "$schema" in schema and validator_for(schema, default=None) is None:  # type: ignore[arg-type]
        return f"is written in an unknown dialect, {schema['$schema']!r}"
    validator: Any = _dialect(schema)  # its protocol lacks `format_checker`, which finds invalid patterns
    try:
        validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
    except SchemaError as error:
        return f"is invalid at {error.json_path}: {error.message}"
    return None


def _dialect(schema: Schema) -> type[Validator]:
    return validator_for(schema, default=Draft202012Validator)


def unresolvable(schema: Schema) -> Iterator[str]:
    """References that lead nowhere, or out of the schema."""
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
