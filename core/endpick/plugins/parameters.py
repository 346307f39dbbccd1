"""Judges a `parameters:` block: by JSON Schema, which knows positions, and by the plugin's model, which makes the typed object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from endpick.api.plugin import Parameters
from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.plugins.frames import describe, trace_notes
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.placing import Place, described_by, description_of, diagnostic_of, parameters_schema
from endpick.plugins.reference import Reference
from endpick.plugins.schema import has_own_model, validator_of
from endpick.plugins.violation import Violation, violations

__all__ = ("OpenParameters", "Place", "check_parameters", "deprecated_parameters", "parameters_schema")


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
    place = Place(reference or Reference(loaded.candidate.type), path, source)
    found = list(dict.fromkeys(_by_schema(loaded, raw)))
    model = loaded.meta.parameters if has_own_model(loaded.meta) else OpenParameters
    try:
        parameters = model.model_validate(raw)
    except ValidationError as error:
        found.extend(_not_covered(_by_model(error, raw), found))
    except Exception as error:
        return (_validator_crashed(loaded, place, error),)
    return tuple(diagnostic_of(violation, loaded, place) for violation in found) if found else parameters


def deprecated_parameters(
    loaded: LoadedPlugin,
    raw: Mapping[str, object],
    source: SourceMap | None = None,
    path: DocumentPath = (),
    reference: Reference | None = None,
) -> tuple[Diagnostic, ...]:
    """A warning for each parameter that is given and that the schema calls deprecated."""
    place = Place(reference or Reference(loaded.candidate.type), path, source)
    plugin = place.reference.plugin(loaded.candidate)
    return tuple(
        Diagnostic(
            Code.W0401,
            f"parameter '{name}' of {place.reference.owner} is deprecated",
            span=place.key_span((name,)),
            help=description_of(parameters_schema(loaded), (name,)),
            plugin=plugin,
            path=(*path, name),
        )
        for name in raw
        if described_by(parameters_schema(loaded), (name,)).get("deprecated") is True
    )


def _by_schema(loaded: LoadedPlugin, raw: Mapping[str, object]) -> Iterator[Violation]:
    block: Any = dict(raw)
    for schema in loaded.schemas:
        yield from violations(validator_of(schema).iter_errors(block))


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


def _validator_crashed(loaded: LoadedPlugin, place: Place, error: Exception) -> Diagnostic:
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
