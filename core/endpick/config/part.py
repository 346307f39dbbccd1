"""What the parts of the configuration document have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, Strict, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from endpick.api.duration import parse_duration
from endpick.config.units import parse_quantity
from endpick.diagnostics import DocumentPath

Item = TypeVar("Item")


class EndpickOnly:
    """Marks a field that llm-d does not have: it needs apiVersion `endpick/v1alpha1`."""


class Deprecated:
    """Marks a field that still works and has a successor."""

    def __init__(self, successor: str) -> None:
        self.successor = successor


class Part(BaseModel):
    """A mapping of the document. Closed and immutable; a field without a value counts as absent, as it does in llm-d."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)

    _path: DocumentPath = PrivateAttr(default=())

    @property
    def path(self) -> DocumentPath:
        """Where it stands in the document, to ask the source map for its place; empty for parts made by hand."""
        return self._path

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


def part_in(annotation: object) -> type[Part] | None:
    """The model that an annotation, optional or repeated, is about; None where it is about none."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        return next(filter(None, map(part_in, get_args(annotation))), None)
    return None


def _duration(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("duration_type", "must be a duration")
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise PydanticCustomError("duration", "is not a duration") from None
    if seconds < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return seconds


def _quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "must be a quantity")
    try:
        quantity = parse_quantity(str(value))
    except ValueError:
        raise PydanticCustomError("quantity", "is not a quantity") from None
    if quantity < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return quantity


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"}
_QUANTITY_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]?|[KMGTPE]i|[eE][-+]?[0-9]{1,3})$"},
    ]
}

# Lax only about the container: YAML has lists, a frozen model holds tuples.
Several = Annotated[tuple[Item, ...], Strict(strict=False)]
Name = Annotated[str, StringConstraints(min_length=1)]
WholeNumber = Annotated[int, BeforeValidator(_whole)]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
"""Seconds, written as a Go duration such as `1m30s`."""

Quantity = Annotated[int, BeforeValidator(_quantity), WithJsonSchema(_QUANTITY_SCHEMA)]
"""A whole number, written as a Kubernetes quantity such as `1Gi`."""
