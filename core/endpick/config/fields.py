"""Which fields the document may have at a path."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.fields import FieldInfo

from endpick.config.model import EndpointPickerConfig
from endpick.config.part import Part, part_in
from endpick.diagnostics import DocumentPath


def part_at(path: DocumentPath) -> type[Part] | None:
    """The model of the mapping at a path; None where the document holds something else, or what a plugin defines."""
    part: type[Part] | None = EndpointPickerConfig
    for segment in path:
        if part is None:
            return None
        if isinstance(segment, int):
            continue
        field = fields_of(part).get(segment)
        part = None if field is None else part_in(field.annotation)
    return part


def fields_of(part: type[Part]) -> dict[str, FieldInfo]:
    """The fields of a model by the name they have in the document."""
    return {field.alias or name: field for name, field in part.model_fields.items()}


def first_required_field(part: type[Part]) -> str | None:
    """The field that every such mapping has, for showing how an entry is written."""
    return next((name for name, field in fields_of(part).items() if field.is_required()), None)


def present_fields(part: Part) -> Iterator[tuple[str, FieldInfo, object]]:
    """The fields the document gives a value: name in the document, definition, value."""
    for name, field in type(part).model_fields.items():
        if name in part.model_fields_set:
            yield field.alias or name, field, getattr(part, name)
