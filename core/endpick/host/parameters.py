"""Judges a `parameters:` block: by JSON Schema, which knows positions, and by the plugin's model, which makes the typed object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from endpick.api.plugin import HAS_NO_EFFECT, Parameters
from endpick.config.source import SourceMap
from endpick.config.yaml_values import Json
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.importing import describe, trace_notes
from endpick.host.loader import LoadedPlugin
from endpick.host.plain_schema import Schema, plainly_satisfies
from endpick.host.resolution import Reference
from endpick.host.schema import own_model
from endpick.host.violation import Violation


@dataclass(frozen=True, slots=True)
class ParameterSource:
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

    def block(self) -> Mapping[str, object]:
        """The block as plain data; empty where the document has none."""
        source = self._source()
        return {} if source is None else cast("Mapping[str, object]", _at(source.data, self.path) or {})

    def _source(self) -> SourceMap | None:
        return self.source if self.source is not None and self.path in self.source else None


def parameters_schema(loaded: LoadedPlugin) -> Schema:
    """The JSON Schema of a plugin's parameters, closed: what the editor, `endpick describe` and the reference show.

    An author who wrote a schema besides a model has written it to be shown.
    """
    return loaded.schemas[-1]


def diagnostic_of(violation: Violation, loaded: LoadedPlugin, place: ParameterSource) -> Diagnostic:
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


def _worded(violation: Violation, loaded: LoadedPlugin, place: ParameterSource) -> tuple[str, Span | None, str]:
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


def _notes(violation: Violation, loaded: LoadedPlugin, place: ParameterSource, path: DocumentPath) -> tuple[str, ...]:
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
    """The part of a schema that describes what is at a path; empty where it cannot be told without judging values.

    What a property says of itself goes before what the model says that it refers to.
    """
    definitions = schema.get("$defs", {})
    for segment in path:
        inner = _properties(schema).get(str(segment), {})
        schema = _followed(inner, definitions if isinstance(definitions, Mapping) else {}) if isinstance(inner, Mapping) else {}
    return schema


def _followed(inner: Mapping[str, object], definitions: Mapping[str, object]) -> Mapping[str, object]:
    """A property with the model it refers to, by `$ref` or as the only choice beside null."""
    choices = inner.get("anyOf")
    real = [one for one in choices if isinstance(one, Mapping) and one.get("type") != "null"] if isinstance(choices, list) else [inner]
    target = definitions.get(str(real[0].get("$ref", "")).removeprefix("#/$defs/")) if len(real) == 1 else None
    return {**target, **inner} if isinstance(target, Mapping) else inner


def description_of(schema: Mapping[str, object], path: DocumentPath) -> str | None:
    """What a schema says of the parameter at a path; None when nothing."""
    description = described_by(schema, path).get("description")
    return description if isinstance(description, str) else None


def _dotted(path: DocumentPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class OpenParameters(Parameters):
    """Parameters of a plugin that describes them by a JSON Schema alone: every name is an attribute, as written."""

    model_config = ConfigDict(extra="allow")


def check_parameters(
    loaded: LoadedPlugin,
    raw: Mapping[str, object],
    source: SourceMap | None = None,
    path: DocumentPath = (),
    reference: Reference | None = None,
) -> Parameters | tuple[Diagnostic, ...]:
    """The typed parameters of one instance, or every mistake in its block.

    Args:
        loaded: The plugin.
        raw: The block as plain data; empty when the entry has none.
        source: The document; None for an instance that the host adds by itself.
        path: Document path of the block, whether or not the document has it.
        reference: The entry the block belongs to.
    """
    place = ParameterSource(reference or Reference(loaded.candidate.type), path, source)
    found = list(dict.fromkeys(_by_schema(loaded, raw)))
    model = own_model(loaded.plugin) or OpenParameters
    try:
        parameters = model.model_validate(raw)
    except ValidationError as error:
        found.extend(_not_covered(_by_model(error, raw), found))
    except CALL_FAILURES as error:
        if is_the_hosts(error):
            raise
        return (_validator_crashed(loaded, place, error),)
    return tuple(diagnostic_of(violation, loaded, place) for violation in found) if found else parameters


def deprecated_parameters(
    loaded: LoadedPlugin,
    raw: Mapping[str, object],
    source: SourceMap | None = None,
    path: DocumentPath = (),
    reference: Reference | None = None,
) -> tuple[Diagnostic, ...]:
    """A warning for each parameter that is given and that the schema calls deprecated, in nested mappings, too."""
    if not raw:
        return ()
    place = ParameterSource(reference or Reference(loaded.candidate.type), path, source)
    plugin, schema = place.reference.plugin(loaded.candidate), parameters_schema(loaded)
    return tuple(
        Diagnostic(
            Code.W0401,
            f"parameter '{_dotted(inner)}' of {place.reference.owner} is deprecated",
            span=place.key_span(inner),
            help=description_of(schema, inner),
            plugin=plugin,
            path=(*path, *inner),
        )
        for inner in _given_names(raw, ())
        if described_by(schema, inner).get("deprecated") is True
    )


def ineffective_parameters(
    loaded: LoadedPlugin,
    raw: Mapping[str, object],
    source: SourceMap | None = None,
    path: DocumentPath = (),
    reference: Reference | None = None,
    *,
    code: Code = Code.W0402,
) -> tuple[Diagnostic, ...]:
    """One diagnostic of this code for each given parameter that has no effect, in nested mappings, too; see `endpick.api.ignored`."""
    if not raw:
        return ()
    place = ParameterSource(reference or Reference(loaded.candidate.type), path, source)
    schema = parameters_schema(loaded)
    return tuple(
        Diagnostic(
            code,
            f"parameter '{_dotted(inner)}' of {place.reference.owner} has no effect",
            span=place.key_span(inner),
            help=instead,
            labels=() if source is None else source.labels_for((*path, *inner)),
            plugin=place.reference.plugin(loaded.candidate),
            path=(*path, *inner),
        )
        for inner in _given_names(raw, ())
        if isinstance(instead := described_by(schema, inner).get(HAS_NO_EFFECT), str)
    )


def _given_names(block: Mapping[str, object], path: DocumentPath) -> Iterator[DocumentPath]:
    for name, value in block.items():
        yield (*path, name)
        if isinstance(value, Mapping):
            yield from _given_names(value, (*path, name))


def _by_schema(loaded: LoadedPlugin, raw: Mapping[str, object]) -> Iterator[Violation]:
    if loaded.candidate.is_builtin and not raw:
        return  # what their schemas refuse their models refuse, too
    block = dict(raw)
    for schema in loaded.schemas:
        if not plainly_satisfies(schema, block):
            from endpick.host.full_schema import violations_of  # noqa: PLC0415 - slow to import, and most parameters are fine

            yield from violations_of(schema, block)


def _by_model(error: ValidationError, raw: Mapping[str, object]) -> Iterator[Violation]:
    for detail in error.errors(include_url=False):
        path = _path_in_document(detail, raw)
        match detail["type"]:
            case "missing":
                yield Violation(Code.E0406, path, "is missing", str(detail["loc"][-1]))
            case "extra_forbidden":
                yield Violation(Code.E0402, path, "is not known", str(detail["loc"][-1]))
            case _:
                yield Violation(Code.E0401, path, _sentence(detail))


def _path_in_document(detail: ErrorDetails, raw: object) -> DocumentPath:
    """The segments of a pydantic location that the document has: it also names union members and validators."""
    path: list[str | int] = []
    for segment in detail["loc"]:
        is_key = isinstance(raw, Mapping) and segment in raw
        is_index = isinstance(raw, list) and isinstance(segment, int) and segment < len(raw)
        if is_key or is_index:
            raw = raw[segment]  # type: ignore[index]
            path.append(segment)
    return tuple(path)


def _sentence(detail: ErrorDetails) -> str:
    cause = detail.get("ctx", {}).get("error")
    return f"is not allowed: {cause if isinstance(cause, Exception) else detail['msg']}"


def _not_covered(later: Iterable[Violation], earlier: Iterable[Violation]) -> Iterator[Violation]:
    """What the model adds to the schema's findings: nothing about places the schema has spoken of already."""
    spoken_of = [violation.path for violation in earlier]
    for violation in later:
        if not any(_overlap(violation.path, path) for path in spoken_of):
            yield violation


def _overlap(one: DocumentPath, other: DocumentPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _validator_crashed(loaded: LoadedPlugin, place: ParameterSource, error: BaseException) -> Diagnostic:
    plugin = place.reference.plugin(loaded.candidate)
    return Diagnostic(
        Code.E0403,
        f"{plugin} cannot judge its parameters: {describe(error)}",
        span=place.key_span(()),
        help=f"this is a fault of {loaded.candidate.distribution}; report it to its author",
        notes=trace_notes(error),
        plugin=plugin,
        path=place.path,
    )
