"""Finds parameters that name other instances (`RefersTo`), in a model and in the parameters of an instance."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from endpick.api.plugin import RefersTo
from endpick.diagnostics import DocumentPath
from endpick.host.kinds import Kind


@dataclass(frozen=True, slots=True)
class NamedInstance:
    """A parameter's reference to an instance.

    Attributes:
        name: The instance.
        kind: The kind it must be of.
        path: Of the value within the `parameters:` block.
        parameter: For messages: `deciders.prefill`.
        is_written: False if the name is the parameter's default.
    """

    name: str
    kind: Kind
    path: DocumentPath
    parameter: str
    is_written: bool


def references_in(parameters: BaseModel, block: Mapping[str, object]) -> tuple[NamedInstance, ...]:
    """Every instance that validated parameters name, in field order; `block` holds them as written."""
    return tuple(_in_model(parameters, block, ()))


def marks_in(model: type[BaseModel]) -> tuple[tuple[str, RefersTo], ...]:
    """The marked fields of a model and its nested models, each with its name."""
    return tuple(_marks(model, set()))


def _in_model(model: BaseModel, block: object, path: DocumentPath) -> Iterator[NamedInstance]:
    written = block if isinstance(block, Mapping) else {}
    for name, field in type(model).model_fields.items():
        segment = name if name in written else field.alias or name
        # `vars`, because pydantic warns when a deprecated attribute is read.
        value, inner, place = vars(model)[name], written.get(segment), (*path, segment)
        mark = _mark_of(field)
        if mark is None:
            yield from _in_value(value, inner, place)
            continue
        for each, at in _names(value, place):
            if each:
                yield NamedInstance(each, mark.kind, at, ".".join(map(str, at)), inner is not None)


def _in_value(value: object, block: object, path: DocumentPath) -> Iterator[NamedInstance]:
    if isinstance(value, BaseModel):
        yield from _in_model(value, block, path)
    elif isinstance(value, list | tuple):
        items = block if isinstance(block, list | tuple) else ()
        for position, item in enumerate(value):
            yield from _in_value(item, items[position] if position < len(items) else None, (*path, position))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _in_value(item, block.get(key) if isinstance(block, Mapping) else None, (*path, key))


def _names(value: object, path: DocumentPath) -> Iterator[tuple[str, DocumentPath]]:
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, list | tuple):
        for position, name in enumerate(value):
            yield str(name), (*path, position)


def _mark_of(field: FieldInfo) -> RefersTo | None:
    return next((mark for mark in field.metadata if isinstance(mark, RefersTo)), None)


def _marks(model: type[BaseModel], seen: set[type]) -> Iterator[tuple[str, RefersTo]]:
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        mark = _mark_of(field)
        if mark is not None:
            yield name, mark
        for inner in _models_of(field.annotation):
            yield from _marks(inner, seen)


def _models_of(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_of(argument)
