"""From a mistake in a block of parameters to a diagnostic at the place where it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from endpick.config.source import SourceMap
from endpick.config.tree import Json
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.reference import Reference
from endpick.plugins.schema import Schema
from endpick.plugins.violation import Violation


@dataclass(frozen=True, slots=True)
class Place:
    """Where a `parameters:` block is, whether or not the document has it."""

    reference: Reference
    """The entry it belongs to: what is blamed when the whole block is missing."""

    path: DocumentPath = ()
    """Document path of the block, such as `("plugins", 0, "parameters")`."""

    source: SourceMap | None = None
    """None for an instance that the host adds by itself."""

    def value_span(self, inner: DocumentPath) -> Span | None:
        """The value under a path within the block."""
        source = self._source()
        return self.reference.span if source is None else source.value_span((*self.path, *inner))

    def key_span(self, inner: DocumentPath) -> Span | None:
        """The key of a path within the block; an item of a list has none, so its value."""
        source = self._source()
        if source is None:
            return self.reference.span
        path = (*self.path, *inner)
        return source.value_span(path) if isinstance(path[-1], int) else source.key_span(path)

    def _source(self) -> SourceMap | None:
        return self.source if self.source is not None and self.path in self.source else None


def parameters_schema(loaded: LoadedPlugin) -> Schema:
    """The JSON Schema of a plugin's parameters, closed: what the editor, `endpick describe` and the reference show.

    An author who wrote a schema besides a model has written it to be shown.
    """
    return loaded.schemas[-1]


def diagnostic_of(violation: Violation, loaded: LoadedPlugin, place: Place) -> Diagnostic:
    """A violation at its place: unknown names at their key, missing ones at the key of what lacks them, values at themselves."""
    plugin = place.reference.plugin(loaded.candidate)
    message, span, annotation = _worded(violation, loaded, place)
    path = (*place.path, *violation.path)
    return Diagnostic(
        violation.code,
        message,
        span=span,
        labels=() if place.source is None else place.source.labels_for(path),
        help=violation.help,
        notes=_notes(violation, loaded, place, path),
        plugin=plugin,
        path=path,
        annotation=annotation,
    )


def _worded(violation: Violation, loaded: LoadedPlugin, place: Place) -> tuple[str, Span | None, str]:
    """Message, span and annotation."""
    path, owner, name = violation.path, place.reference.owner, violation.name
    match violation.code:
        case Code.E0402:
            return f"unknown parameter '{name}' for {owner}", place.key_span(path), f"not a parameter of {loaded.type}"
        case Code.E0406:
            return f"parameter '{_dotted((*path, str(name)))}' of {owner} is missing", place.key_span(path), f"needs '{name}'"
    if path:
        return f"parameter '{_dotted(path)}' of {owner} {violation.predicate}", place.value_span(path), violation.predicate
    plural = violation.predicate.replace("is ", "are ", 1) if violation.predicate.startswith("is ") else violation.predicate
    return f"the parameters of {owner} {plural}", place.key_span(path), violation.predicate


def _notes(violation: Violation, loaded: LoadedPlugin, place: Place, path: DocumentPath) -> tuple[str, ...]:
    schema = parameters_schema(loaded)
    if violation.code is Code.E0402:
        names = sorted(_properties(described_by(schema, violation.path[:-1])))
        return () if violation.help or not names else (f"known are {', '.join(names)}",)
    named = violation.path if violation.code is Code.E0401 else (*violation.path, str(violation.name))
    description = description_of(schema, named) if named else None
    surprises = place.source.reading_notes(path, _at(place.source.data, path)) if place.source and violation.path else ()
    return (*surprises, *((f"{_dotted(named)}: {description}",) if description else ()))


def _at(data: object, path: DocumentPath) -> Json:
    for segment in path:
        data = data[segment]  # type: ignore[index]
    return cast("Json", data)


def _properties(schema: Mapping[str, object]) -> Mapping[str, object]:
    properties = schema.get("properties", {})
    return properties if isinstance(properties, Mapping) else {}


def described_by(schema: Mapping[str, object], path: DocumentPath) -> Mapping[str, object]:
    """The part of a schema that describes what is at a path; empty where it cannot be told without judging values."""
    root = schema
    for segment in path:
        inner = _properties(schema).get(str(segment), {})
        target = inner.get("$ref", "") if isinstance(inner, Mapping) else ""
        definitions = root.get("$defs", {})
        name = str(target).removeprefix("#/$defs/")
        found = definitions.get(name, inner) if isinstance(definitions, Mapping) else inner
        schema = found if isinstance(found, Mapping) else {}
    return schema


def description_of(schema: Mapping[str, object], path: DocumentPath) -> str | None:
    """What a schema says of the parameter at a path; None when nothing."""
    description = described_by(schema, path).get("description")
    return description if isinstance(description, str) else None


def _dotted(path: DocumentPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
