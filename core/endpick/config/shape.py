"""The shape of a document: every field known, present and of its type, and what is left where that is not so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from endpick.config.fields import fields_of, part_at
from endpick.config.model import ENDPICK, KIND, EndpointPickerConfig
from endpick.config.pruning import original_path, place_parts, prune
from endpick.config.shape_mistakes import diagnose, wrong_kind
from endpick.config.source import SourceMap
from endpick.config.tree import Json
from endpick.diagnostics import Diagnostic, DocumentPath, suggest

_FILLED_IN: Mapping[DocumentPath, Json] = {("apiVersion",): ENDPICK, ("kind",): KIND}
"""What stands in for a faulty version or kind, so that the rest of the document can still be judged."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a document looks like as far as it has the right shape."""

    config: EndpointPickerConfig | None
    diagnostics: tuple[Diagnostic, ...]
    faulty: frozenset[DocumentPath]
    """What was taken out of the document because it, or something in it, is wrong."""


def check_shape(source: SourceMap) -> Shape:
    """Every mistake of shape, and the model of the document without the mistaken parts.

    Each round takes the faulty parts out and looks again, because a part can only be judged when those around it are sound.
    """
    if (other := _of_another_kind(source)) is not None:
        return Shape(None, (other,), frozenset())
    diagnostics: list[Diagnostic] = []
    faulty: set[DocumentPath] = set()
    while True:
        remaining = prune(source.data, faulty)
        try:
            config = EndpointPickerConfig.model_validate(_filled_in(remaining, faulty))
        except ValidationError as error:
            details = error.errors(include_url=False)
            found = [(detail, _path(detail, source.data, faulty)) for detail in details]
            misspelt = {meant for detail, path in found if (meant := _meant_field(detail, path)) is not None}
            news = [(detail, path) for detail, path in found if not _is_echo(detail, path, faulty | misspelt)]
            diagnostics += [diagnose(detail, path, source) for detail, path in news]
            removed = {_removed(detail, path) for detail, path in found}
            if () in removed:
                return Shape(None, tuple(diagnostics), frozenset(faulty))
            faulty |= removed
        else:
            place_parts(config, source.data, faulty)
            return Shape(config, tuple(diagnostics), frozenset(faulty))


def _of_another_kind(source: SourceMap) -> Diagnostic | None:
    """The only thing to say about a document that is no configuration at all, such as a Kubernetes manifest."""
    kind = source.data.get("kind") if isinstance(source.data, Mapping) else None
    if not isinstance(kind, str) or not kind or kind == KIND or suggest(kind, (KIND,)) is not None:
        return None
    return wrong_kind(("kind",), source)


def _filled_in(data: Json, faulty: set[DocumentPath]) -> Json:
    if not isinstance(data, Mapping):
        return data
    return {**data, **{str(path[0]): value for path, value in _FILLED_IN.items() if path in faulty}}


def _path(detail: ErrorDetails, data: Json, faulty: set[DocumentPath]) -> DocumentPath:
    """Where the mistake is; for a missing field, where the field would be."""
    return original_path(tuple(detail["loc"]), data, faulty)


def _is_echo(detail: ErrorDetails, path: DocumentPath, known: Collection[DocumentPath]) -> bool:
    """Whether a field is only missing because it was misspelt, or because its faulty value was taken out."""
    return detail["type"] == "missing" and path in known


def _meant_field(detail: ErrorDetails, path: DocumentPath) -> DocumentPath | None:
    """The field that an unknown one was probably meant to be."""
    part = part_at(path[:-1]) if detail["type"] == "extra_forbidden" else None
    meant = None if part is None else suggest(str(path[-1]), fields_of(part))
    return None if meant is None else (*path[:-1], meant)


def _removed(detail: ErrorDetails, path: DocumentPath) -> DocumentPath:
    return path[:-1] if detail["type"] == "missing" and path not in _FILLED_IN else path
