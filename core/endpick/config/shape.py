"""Checks the fields of a document and leaves faulty parts out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from endpick.api.plugin import A_DURATION
from endpick.config.model import API_VERSIONS, ENDPICK, KIND, LLM_D, EndpointPickerConfig, Part, PluginSpec, part_in
from endpick.config.source import Json, SourceMap, is_number
from endpick.config.upstream import find_name
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span, did_you_mean, suggest

_FILLED_IN: Mapping[DocumentPath, Json] = {("apiVersion",): ENDPICK, ("kind",): KIND}
"""For a faulty version or kind, so that the rest can be checked."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Valid parts, mistakes, and paths of removed parts."""

    config: EndpointPickerConfig | None
    diagnostics: tuple[Diagnostic, ...]
    faulty: frozenset[DocumentPath]


def check_shape(source: SourceMap) -> Shape:
    """Build the model without faulty parts; repeats, because pydantic skips validators around a faulty part."""
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
            found = [(detail, original_path(tuple(detail["loc"]), source.data, faulty)) for detail in details]
            misspelt = {meant for detail, path in found if (meant := _meant_field(detail, path)) is not None}
            fresh = [(detail, path) for detail, path in found if detail["type"] != "missing" or path not in faulty | misspelt]
            diagnostics += [diagnose(detail, path, source) for detail, path in fresh]
            removed = {_removed(detail, path) for detail, path in found}
            if () in removed:
                return Shape(None, tuple(diagnostics), frozenset(faulty))
            faulty |= removed
        else:
            place_parts(config, source.data, faulty)
            return Shape(config, tuple(diagnostics), frozenset(faulty))


def _of_another_kind(source: SourceMap) -> Diagnostic | None:
    kind = source.data.get("kind") if isinstance(source.data, Mapping) else None
    if not isinstance(kind, str) or not kind or kind == KIND or suggest(kind, (KIND,)) is not None:
        return None
    return _wrong_kind(("kind",), source)


def _filled_in(data: Json, faulty: set[DocumentPath]) -> Json:
    if not isinstance(data, Mapping):
        return data
    return {**data, **{str(path[0]): value for path, value in _FILLED_IN.items() if path in faulty}}


def _meant_field(detail: ErrorDetails, path: DocumentPath) -> DocumentPath | None:
    part = part_at(path[:-1]) if detail["type"] == "extra_forbidden" else None
    meant = None if part is None else suggest(str(path[-1]), fields_of(part))
    return None if meant is None else (*path[:-1], meant)


def _removed(detail: ErrorDetails, path: DocumentPath) -> DocumentPath:
    return path[:-1] if detail["type"] == "missing" and path not in _FILLED_IN else path


def prune(data: Json, faulty: Collection[DocumentPath], path: DocumentPath = ()) -> Json:
    """Copy `data`, found at `path`, without the faulty paths."""
    match data:
        case Mapping():
            return {key: prune(value, faulty, (*path, key)) for key, value in data.items() if (*path, key) not in faulty}
        case str():
            return data
        case Sequence():
            return [prune(data[index], faulty, (*path, index)) for index in survivors(len(data), faulty, path)]
        case _:
            return data


def survivors(length: int, faulty: Collection[DocumentPath], path: DocumentPath) -> list[int]:
    """Return the indices of a list with `length` items that are not faulty."""
    return [index for index in range(length) if (*path, index) not in faulty]


def original_path(path: DocumentPath, data: Json, faulty: Collection[DocumentPath]) -> DocumentPath:
    """Translate a path of the pruned document to one of `data`."""
    original: DocumentPath = ()
    for segment in path:
        if isinstance(data, Mapping) and isinstance(segment, str):
            original = (*original, segment)
            data = data.get(segment)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(segment, int):
            index = survivors(len(data), faulty, original)[segment]
            original = (*original, index)
            data = data[index]
        else:
            break
    return original


def place_parts(part: Part, data: Json, faulty: Collection[DocumentPath], path: DocumentPath = ()) -> None:
    """Set the path of every part that was read from `data`."""
    part._path = path
    if not isinstance(data, Mapping):
        return
    for name, field in type(part).model_fields.items():
        key = field.alias or name
        for child, value, where in _children(getattr(part, name), data.get(key), faulty, (*path, key)):
            place_parts(child, value, faulty, where)


def _children(value: object, data: Json, faulty: Collection[DocumentPath], path: DocumentPath) -> Iterator[tuple[Part, Json, DocumentPath]]:
    if isinstance(value, Part):
        yield value, data, path
    elif isinstance(value, tuple) and isinstance(data, Sequence) and not isinstance(data, str):
        for item, index in zip(value, survivors(len(data), faulty, path), strict=True):
            if isinstance(item, Part):
                yield item, data[index], (*path, index)


BOOLEAN = "true or false"

EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": BOOLEAN,
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "duration_type": A_DURATION,
    "quantity_type": "a quantity",
}
"""The expected value in words, by type of pydantic error."""


def diagnose(detail: ErrorDetails, path: DocumentPath, source: SourceMap) -> Diagnostic:
    """Build the diagnostic for a pydantic error."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_field(path, source)
    if kind == "missing" or (kind == "string_too_short" and value_at(source.data, path) == ""):
        return _missing_field(path, source)
    if kind in EXPECTED:
        return _wrong_type(path, source, EXPECTED[kind])
    if path == ("apiVersion",):
        return _unsupported_version(path, source)
    if path == ("kind",):
        return _wrong_kind(path, source)
    if kind == "duration":
        return _unreadable(path, source, f"must be {A_DURATION}, not", None)
    if kind == "quantity":
        return _unreadable(path, source, "is not a quantity:", "write for example 5000, '10k' or '1Gi'")
    return _wrong_value(detail, path, source)


def _unknown_field(path: DocumentPath, source: SourceMap) -> Diagnostic:
    name, parent = str(path[-1]), path[:-1]
    part = part_at(parent)
    known = [] if part is None else sorted(fields_of(part))
    upstream = find_name("field", ".".join(segment for segment in path if isinstance(segment, str)))
    hint = (upstream and upstream.advice) or did_you_mean(name, known)
    if hint is None and part is PluginSpec:
        hint = "parameters of the plugin belong under 'parameters:'"
    hint = hint or f"it may have {', '.join(known)}"
    return source.diagnostic(Code.E0201, f"'{shorten(name)}' is not a field of {show_path(parent)}", path, hint, at_key=True)


def _missing_field(path: DocumentPath, source: SourceMap) -> Diagnostic:
    name, parent = str(path[-1]), path[:-1]
    if path in source:
        message, span = f"'{name}' of {show_path(parent)} has no value", source.key_span(path)
    else:
        message, span = f"'{name}' is missing in {show_path(parent)}", _opening(parent, source)
    examples: dict[DocumentPath, str] = {("apiVersion",): f"add 'apiVersion: {LLM_D}'", ("kind",): f"add 'kind: {KIND}'"}
    advice = examples.get(path, f"add '{name}: ...'")
    return Diagnostic(Code.E0202, message, span, labels=source.labels_for(source.nearest(path)), help=advice, path=path)


def _opening(parent: DocumentPath, source: SourceMap) -> Span:
    if parent and isinstance(parent[-1], str):
        return source.key_span(parent)
    children = (path for path in source.places if path[:-1] == parent and path != parent)
    first = next(children, None)
    return source.value_span(parent) if first is None else source.key_span(first)


def _wrong_type(path: DocumentPath, source: SourceMap, expected: str) -> Diagnostic:
    value = value_at(source.data, path)
    message = f"{show_path(path)} must be {expected}, not {describe(value)}"
    notes = source.reading_notes(path, value) if expected == BOOLEAN or not isinstance(value, str) else ()
    return source.diagnostic(Code.E0203, message, path, _how_to_write(path, value, expected), notes)


def _how_to_write(path: DocumentPath, value: Json, expected: str) -> str | None:
    match expected, value:
        case "a mapping", _ if not path:
            return f"start with 'apiVersion: {LLM_D}' and 'kind: {KIND}'"
        case "a mapping", str():
            entry = _entry(path, value)
            return None if entry is None else f"write '{entry}'"
        case "a mapping", Sequence():
            return "write 'key: value' instead of list entries"
        case "a list", Mapping():
            return "begin each entry with '- '"
        case "a list", str():
            entry = _entry(path, value)
            return f"write '[{shorten(value)}]'" if entry is None else f"write '[{{{entry}}}]'"
        case "text", int() | float():
            return "put the value in quotes"
        case "a number" | "a whole number", str() if is_number(value):
            return "write the number without quotes"
        case _, int() | float() if expected == A_DURATION and not isinstance(value, bool):
            return f"write '{value}s' if seconds are meant"
        case _:
            return None


def _entry(path: DocumentPath, value: str) -> str | None:
    part = part_at(path)
    field = None if part is None else next((name for name, field in fields_of(part).items() if field.is_required()), None)
    return None if field is None else f"{field}: {shorten(value)}"


def _unsupported_version(path: DocumentPath, source: SourceMap) -> Diagnostic:
    version = str(value_at(source.data, path))
    return Diagnostic(
        Code.E0204,
        f"the apiVersion '{shorten(version)}' is not supported",
        source.value_span(path),
        help=did_you_mean(version, API_VERSIONS) or f"supported are {', '.join(API_VERSIONS)}",
        path=path,
    )


def _wrong_kind(path: DocumentPath, source: SourceMap) -> Diagnostic:
    kind = str(value_at(source.data, path))
    message = f"the kind is '{shorten(kind)}', not {KIND}"
    hint = did_you_mean(kind, (KIND,)) or f"is this the right file? it should say 'kind: {KIND}'"
    return Diagnostic(Code.E0209, message, source.value_span(path), help=hint, path=path)


def _unreadable(path: DocumentPath, source: SourceMap, complaint: str, advice: str | None) -> Diagnostic:
    return source.diagnostic(Code.E0210, f"{show_path(path)} {complaint} {describe(value_at(source.data, path))}", path, advice)


def _wrong_value(detail: ErrorDetails, path: DocumentPath, source: SourceMap) -> Diagnostic:
    value = value_at(source.data, path)
    complaint = detail["msg"].replace("Input should be", "must be").replace("must not be negative", "must be 0 or more")
    choices = str(detail.get("ctx", {}).get("expected", "")).split("'")[1::2]
    hint = did_you_mean(value, choices) if isinstance(value, str) else None
    return source.diagnostic(Code.E0205, f"{show_path(path)} {complaint}, not {describe(value)}", path, hint)


def value_at(data: Json, path: DocumentPath) -> Json:
    """Return the value at a path, or None."""
    for segment in path:
        if isinstance(data, Mapping) and isinstance(segment, str):
            data = data.get(segment)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(segment, int) and segment < len(data):
            data = data[segment]
        else:
            return None
    return data


def part_at(path: DocumentPath) -> type[Part] | None:
    """Return the model at a path; None inside plugin parameters and for other values."""
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
    """Return the fields of a model by their names in the document."""
    return {field.alias or name: field for name, field in part.model_fields.items()}


def present_fields(part: Part) -> Iterator[tuple[str, FieldInfo, object]]:
    """Yield the name in the document, the definition and the value of each field that is set."""
    for name, field in type(part).model_fields.items():
        if name in part.model_fields_set:
            yield field.alias or name, field, getattr(part, name)


MAX_SHOWN = 40


def describe(value: Json) -> str:
    """Describe a value for a message, such as `the number 3` or `a mapping`."""
    match value:
        case None:
            return "no value"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text '{shorten(value)}'" if value else "empty text"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def shorten(text: str) -> str:
    """Cut a text to `MAX_SHOWN` characters, with an ellipsis at the end."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def show_path(path: DocumentPath) -> str:
    """Format a path as in messages: `plugins[0].type`."""
    shown = "".join(f"[{segment}]" if isinstance(segment, int) else f".{segment}" for segment in path)
    return shown.removeprefix(".") or "the document"
