"""Checks `parameters:` blocks: JSON Schema finds positions, pydantic builds the object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import eq
from typing import cast

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from endpick.api.plugin import HAS_NO_EFFECT, Parameters
from endpick.config.source import Json, SourceMap
from endpick.config.upstream import UpstreamName, find_name
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span
from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes
from endpick.host.loader import LoadedPlugin
from endpick.host.resolution import Reference
from endpick.host.schema import Schema, Violation, own_model, schema_errors, violations


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """The place of a `parameters:` block, which may be missing, in the document."""

    reference: Reference  # its entry
    path: DocumentPath = ()  # `("plugins", 0, "parameters")`
    source: SourceMap | None = None  # None for an added instance

    def value_span(self, inner: DocumentPath) -> Span | None:
        """Return the span of the value at a path within the block."""
        source = self._source()
        return self.reference.span if source is None else source.value_span((*self.path, *inner))

    def key_span(self, inner: DocumentPath) -> Span | None:
        """Return the span of the key at a path; for an item of a list, of its value."""
        source = self._source()
        if source is None:
            return self.reference.span
        path = (*self.path, *inner)
        return source.value_span(path) if isinstance(path[-1], int) else source.key_span(path)

    def block(self) -> Mapping[str, object]:
        """Return the block as plain data, empty if it is missing."""
        source = self._source()
        return {} if source is None else cast("Mapping[str, object]", _at(source.data, self.path) or {})

    def _source(self) -> SourceMap | None:
        return self.source if self.source is not None and self.path in self.source else None


def parameters_schema(loaded: LoadedPlugin) -> Schema:
    """Return the author's schema, else the schema generated from the model."""
    return loaded.schemas[-1]


def _diagnostic_of(violation: Violation, loaded: LoadedPlugin, place: ParameterSource) -> Diagnostic:
    message, span, annotation = _worded(violation, loaded, place)
    path = (*place.path, *violation.path)
    upstream = _upstream_name(violation, loaded)
    if upstream is not None and upstream.is_missing:
        message = f"parameter '{_dotted(violation.path)}' of {place.reference.owner} is not in this release of endpick; {upstream.status}"
        violation = replace(violation, code=Code.E0408, help=upstream.advice or "remove it, or look for a release of endpick that has it")
        annotation = "not in this release"
    elif upstream is not None:
        violation = replace(violation, help=upstream.advice or f"remove it; {upstream.status}")
    return Diagnostic(
        violation.code,
        message,
        span=span,
        labels=() if place.source is None else place.source.labels_for(path),
        help=violation.help,
        notes=_notes(violation, loaded, place, path),
        plugin=place.reference.plugin(loaded.candidate),
        path=path,
        annotation=annotation,
    )


def _upstream_name(violation: Violation, loaded: LoadedPlugin) -> UpstreamName | None:
    if violation.code is not Code.E0402:
        return None
    return find_name("parameter", ".".join(part for part in violation.path if isinstance(part, str)), loaded.type)


def _worded(violation: Violation, loaded: LoadedPlugin, place: ParameterSource) -> tuple[str, Span | None, str]:
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
        names = sorted(_properties(_described_by(schema, violation.path[:-1])))
        return () if violation.help or not names else (f"known are {', '.join(names)}",)
    named = violation.path if violation.code is Code.E0401 else (*violation.path, str(violation.name))
    description = _described_by(schema, named).get("description") if named else None
    surprises = place.source.reading_notes(path, _at(place.source.data, path)) if place.source and violation.path else ()
    return (*surprises, *((f"{_dotted(named)}: {description}",) if description else ()))


def _at(data: object, path: DocumentPath) -> Json:
    for segment in path:
        data = data[segment]  # type: ignore[index]
    return cast("Json", data)


def _properties(schema: Mapping[str, object]) -> Mapping[str, object]:
    properties = schema.get("properties", {})
    return properties if isinstance(properties, Mapping) else {}


def _described_by(schema: Mapping[str, object], path: DocumentPath) -> Mapping[str, object]:
    """Empty if the description depends on values."""
    definitions = schema.get("$defs", {})
    for segment in path:
        inner = _properties(schema).get(str(segment), {})
        schema = _followed(inner, definitions if isinstance(definitions, Mapping) else {}) if isinstance(inner, Mapping) else {}
    return schema


def _followed(inner: Mapping[str, object], definitions: Mapping[str, object]) -> Mapping[str, object]:
    """Merge with a `$ref` or with the only alternative to null; the property's own keywords win."""
    choices = inner.get("anyOf")
    real = [item for item in choices if isinstance(item, Mapping) and item.get("type") != "null"] if isinstance(choices, list) else [inner]
    target = definitions.get(str(real[0].get("$ref", "")).removeprefix("#/$defs/")) if len(real) == 1 else None
    return {**target, **inner} if isinstance(target, Mapping) else inner


def _dotted(path: DocumentPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class OpenParameters(Parameters):
    """The parameters of a plugin with a JSON Schema and no model: every key is an attribute."""

    model_config = ConfigDict(extra="allow")


def check_parameters(
    loaded: LoadedPlugin, raw: Mapping[str, object], place: ParameterSource | None = None
) -> Parameters | tuple[Diagnostic, ...]:
    """Return the typed parameters of an instance, or every mistake in `raw`."""
    place = place or ParameterSource(Reference(loaded.candidate.type))
    found = list(dict.fromkeys(violation for schema in loaded.schemas for violation in violations(schema_errors(schema, raw))))
    model = own_model(loaded.plugin) or OpenParameters
    try:
        parameters = model.model_validate(raw)
    except ValidationError as error:
        found.extend(_not_covered(_by_model(error, raw), found))
    except PLUGIN_ERRORS as error:
        repair = f"this is a fault of {loaded.candidate.distribution}; report it to its author"
        return (refusal(loaded, place, f"cannot judge its parameters: {describe_error(error)}", repair, trace_notes(error)),)
    return tuple(_diagnostic_of(violation, loaded, place) for violation in found) if found else parameters


def deprecated_parameters(loaded: LoadedPlugin, raw: Mapping[str, object], place: ParameterSource) -> tuple[Diagnostic, ...]:
    """Return a warning for each deprecated parameter, including nested ones."""
    return tuple(
        _about_given(Code.W0401, "is deprecated", inner, described.get("description"), loaded, place)
        for inner, described in _given(loaded, raw)
        if described.get("deprecated") is True
    )


def ineffective_parameters(
    loaded: LoadedPlugin, raw: Mapping[str, object], place: ParameterSource, code: Code = Code.W0402
) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each parameter without effect; see `endpick.api.ignored`."""
    return tuple(
        _about_given(code, "has no effect", inner, described[HAS_NO_EFFECT], loaded, place)
        for inner, described in _given(loaded, raw)
        if HAS_NO_EFFECT in described
    )


def _about_given(
    code: Code, predicate: str, inner: DocumentPath, advice: object, loaded: LoadedPlugin, place: ParameterSource
) -> Diagnostic:
    path = (*place.path, *inner)
    return Diagnostic(
        code,
        f"parameter '{_dotted(inner)}' of {place.reference.owner} {predicate}",
        span=place.key_span(inner),
        labels=() if place.source is None else place.source.labels_for(path),
        help=advice if isinstance(advice, str) else None,
        plugin=place.reference.plugin(loaded.candidate),
        path=path,
    )


def _given(loaded: LoadedPlugin, raw: Mapping[str, object]) -> Iterator[tuple[DocumentPath, Mapping[str, object]]]:
    if raw:
        schema = parameters_schema(loaded)
        for path in _given_names(raw, ()):
            yield path, _described_by(schema, path)


def _given_names(block: Mapping[str, object], path: DocumentPath) -> Iterator[DocumentPath]:
    for name, value in block.items():
        yield (*path, name)
        if isinstance(value, Mapping):
            yield from _given_names(value, (*path, name))


def _by_model(error: ValidationError, raw: Mapping[str, object]) -> Iterator[Violation]:
    for detail in error.errors(include_url=False):
        path = _path_in_document(detail, raw)
        match detail["type"]:
            case "missing":
                yield Violation(Code.E0406, path, "is missing", str(detail["loc"][-1]))
            case "extra_forbidden":
                yield Violation(Code.E0402, path, "is not known", str(detail["loc"][-1]))
            case _:
                cause = detail.get("ctx", {}).get("error")
                yield Violation(Code.E0401, path, f"is not allowed: {cause if isinstance(cause, Exception) else detail['msg']}")


def _path_in_document(detail: ErrorDetails, raw: object) -> DocumentPath:
    path: list[str | int] = []
    for segment in detail["loc"]:
        is_key = isinstance(raw, Mapping) and segment in raw
        is_index = isinstance(raw, list) and isinstance(segment, int) and segment < len(raw)
        if is_key or is_index:
            raw = raw[segment]  # type: ignore[index]
            path.append(segment)
    return tuple(path)


def _not_covered(later: Iterable[Violation], earlier: Iterable[Violation]) -> Iterator[Violation]:
    reported = [violation.path for violation in earlier]
    for violation in later:
        if not any(all(map(eq, violation.path, path)) for path in reported):
            yield violation


def refusal(loaded: LoadedPlugin, place: ParameterSource, predicate: str, repair: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    """Return the diagnostic of a plugin that cannot be built with a `parameters:` block."""
    plugin = place.reference.plugin(loaded.candidate)
    message = f"{plugin} {predicate}"
    return Diagnostic(Code.E0403, message, place.key_span(()), help=repair, notes=notes, plugin=plugin, path=place.path)
