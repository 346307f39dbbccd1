"""Mistakes of shape in words: from what the document model refuses to a diagnostic with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic_core import ErrorDetails

from endpick.config.fields import fields_of, first_required_field, part_at
from endpick.config.model import API_VERSIONS, KIND, LLM_D, PluginSpec
from endpick.config.scalars import is_number
from endpick.config.source import SourceMap
from endpick.config.tree import Json
from endpick.config.wording import BOOLEAN, EXPECTED, describe, shorten, show_path, value_at
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span, did_you_mean


def diagnose(detail: ErrorDetails, path: DocumentPath, source: SourceMap) -> Diagnostic:
    """The diagnostic for one error of the document model at a path of the document."""
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
        return wrong_kind(path, source)
    if kind in ("duration", "quantity"):
        return _unreadable_unit(kind, path, source)
    return _wrong_value(detail, path, source)


def _unknown_field(path: DocumentPath, source: SourceMap) -> Diagnostic:
    name, parent = str(path[-1]), path[:-1]
    part = part_at(parent)
    known = [] if part is None else sorted(fields_of(part))
    hint = did_you_mean(name, known)
    if hint is None and part is PluginSpec:
        hint = "parameters of the plugin belong under 'parameters:'"
    return Diagnostic(
        Code.E0201,
        f"'{shorten(name)}' is not a field of {show_path(parent)}",
        source.key_span(path),
        labels=source.labels_for(path),
        help=hint or f"it may have {', '.join(known)}",
        path=path,
    )


def _missing_field(path: DocumentPath, source: SourceMap) -> Diagnostic:
    name, parent = str(path[-1]), path[:-1]
    if path in source:
        message, span = f"'{name}' of {show_path(parent)} has no value", source.key_span(path)
    else:
        message, span = f"'{name}' is missing in {show_path(parent)}", _opening(parent, source)
    return Diagnostic(Code.E0202, message, span, labels=source.labels_for(source.nearest(path)), help=_how_to_give(path), path=path)


def _opening(parent: DocumentPath, source: SourceMap) -> Span:
    """The key of the mapping that lacks something; for an item of a list its first key, for the document its start."""
    if parent and isinstance(parent[-1], str):
        return source.key_span(parent)
    children = (path for path in source.places if path[:-1] == parent and path != parent)
    first = next(children, None)
    return source.value_span(parent) if first is None else source.key_span(first)


def _how_to_give(path: DocumentPath) -> str:
    examples: dict[DocumentPath, str] = {("apiVersion",): f"add 'apiVersion: {LLM_D}'", ("kind",): f"add 'kind: {KIND}'"}
    return examples.get(path, f"add '{path[-1]}: ...'")


def _wrong_type(path: DocumentPath, source: SourceMap, expected: str) -> Diagnostic:
    value = value_at(source.data, path)
    return Diagnostic(
        Code.E0203,
        f"{show_path(path)} must be {expected}, not {describe(value)}",
        source.value_span(path),
        labels=source.labels_for(path),
        help=_how_to_write(path, value, expected),
        notes=source.reading_notes(path, value) if expected == BOOLEAN or not isinstance(value, str) else (),
        path=path,
    )


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
        case "a duration, as text", int() | float() if not isinstance(value, bool):
            return f"write '{value}s' if seconds are meant"
        case _:
            return None


def _entry(path: DocumentPath, value: str) -> str | None:
    """How the mapping at a path, or an entry of the list there, is written when a lone word was given for it."""
    part = part_at(path)
    field = None if part is None else first_required_field(part)
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


def wrong_kind(path: DocumentPath, source: SourceMap) -> Diagnostic:
    """The diagnostic for a document whose `kind`, at `path`, is another."""
    kind = str(value_at(source.data, path))
    message = f"the kind is '{shorten(kind)}', not {KIND}"
    hint = did_you_mean(kind, (KIND,)) or f"is this the right file? it should say 'kind: {KIND}'"
    return Diagnostic(Code.E0209, message, source.value_span(path), help=hint, path=path)


def _unreadable_unit(kind: str, path: DocumentPath, source: SourceMap) -> Diagnostic:
    value = value_at(source.data, path)
    examples = {"duration": "'200ms', '60s' or '1m30s'", "quantity": "5000, '10k' or '1Gi'"}
    return Diagnostic(
        Code.E0210,
        f"{show_path(path)} is not a {kind}: {describe(value)}",
        source.value_span(path),
        labels=source.labels_for(path),
        help=f"write for example {examples[kind]}",
        path=path,
    )


def _wrong_value(detail: ErrorDetails, path: DocumentPath, source: SourceMap) -> Diagnostic:
    value = value_at(source.data, path)
    return Diagnostic(
        Code.E0205,
        f"{show_path(path)} {_complaint(detail)}, not {describe(value)}",
        source.value_span(path),
        labels=source.labels_for(path),
        help=_closest_choice(detail, value),
        path=path,
    )


def _complaint(detail: ErrorDetails) -> str:
    message = detail["msg"]
    return message.replace("Input should be", "must be").replace("must not be negative", "must be 0 or more")


def _closest_choice(detail: ErrorDetails, value: Json) -> str | None:
    choices = str(detail.get("ctx", {}).get("expected", "")).split("'")[1::2]
    return did_you_mean(value, choices) if isinstance(value, str) else None
