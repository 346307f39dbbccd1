"""reference/configuration.md: every field of the configuration document."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from endpick.config import EndpointPickerConfig
from endpick.config.gates import DEFAULT_GATES
from endpick.config.model import ENDPICK, LLM_D, Deprecated, EndpickOnly, Moved, Part, SinceV1, part_in
from endpick.config.units import Duration, Quantity
from endpick.config.upstream import State, upstream_names


def page() -> str:
    """The page."""
    parts = list(dict.fromkeys(_parts(EndpointPickerConfig)))
    gates = ((code(name), "on" if default else "off") for name, default in DEFAULT_GATES.items())
    return markdown_page(
        "Configuration",
        "All fields of `EndpointPickerConfig`, with types and defaults.",
        "Other fields and duplicate keys are errors. The JSON Schema for editors is `schemas/config.v1.json`; "
        "`endpick schema config --installed` includes your plugins.",
        *(_section(part) for part in parts),
        "## Feature gates",
        table(("gate", "default"), gates),
        "\n".join(f"- {code(row.name)}: {row.advice}" for row in upstream_names() if row.kind == "gate" and row.state is State.REMOVED),
        "## Values",
        "- **duration**: Go's notation, `50ms`, `1.5s`, `1m30s`.\n"
        "- **quantity**: Kubernetes' notation, `512`, `16Mi`, `1Gi`.\n"
        "- **number**: finite. `NaN`, infinities and numbers that YAML 1.1 and 1.2 read differently (`012`, `1_000`) are errors.",
    )


def _parts(part: type[Part]) -> Iterator[type[Part]]:
    yield part
    for field in part.model_fields.values():
        child = part_in(field.annotation)
        if child is not None:
            yield from _parts(child)


def _section(part: type[Part]) -> str:
    rows = (_row(field.alias or name, field) for name, field in part.model_fields.items())
    return "\n\n".join((f"## {part.__name__}", inspect.cleandoc(part.__doc__ or ""), table(("field", "type", "needed", "meaning"), rows)))


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    notes = [field.description or ""]
    for mark in field.metadata:
        if isinstance(mark, EndpickOnly):
            notes.append(f"Only with `apiVersion: {ENDPICK}`.")
        if isinstance(mark, SinceV1):
            notes.append(f"Not in `v1alpha1` of llm-d: write `apiVersion: {LLM_D}`.")
        if isinstance(mark, Deprecated) and "Deprecated" not in notes[0]:
            notes.append(f"{'Only in `v1alpha1`' if isinstance(mark, Moved) else 'Deprecated'}: use `{mark.successor}`.")
    return code(name), _type(field.annotation, field), "yes" if field.is_required() else "", " ".join(notes)


def _type(annotation: object, field: FieldInfo | None = None) -> str:
    child = part_in(annotation)
    if child is not None:
        linked = f"[{child.__name__}](#{child.__name__.lower()})"
        return f"list of {linked}" if "tuple" in str(annotation) else linked
    if _is(annotation, Duration) or (field and any(item in field.metadata for item in get_args(Duration)[1:])):
        return "duration"
    if _is(annotation, Quantity) or (field and any(item in field.metadata for item in get_args(Quantity)[1:])):
        return "quantity"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in arguments if one is not NoneType)
    if origin is Literal:
        return " or ".join(code(one) for one in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    return {str: "text", float: "number", int: "whole number", bool: "true or false"}.get(annotation, "value")  # type: ignore[call-overload]


def _is(annotation: object, alias: object) -> bool:
    return annotation == alias
