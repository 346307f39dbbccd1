"""Checks that the fields of a document exist in its apiVersion, and reports deprecated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from endpick.config.model import (
    ALPHA_VERSIONS,
    ENDPICK,
    FORMER_GROUP,
    LLM_D,
    Deprecated,
    EndpickOnly,
    EndpointPickerConfig,
    Moved,
    Part,
    SinceV1,
    part_in,
)
from endpick.config.shape import fields_of, present_fields, show_path, value_at
from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label

_REWRITE = f"`endpick migrate FILE` rewrites it as {LLM_D}"


@cache
def former_places() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return the former places of fields with their successors, which win if both are given."""
    return tuple(_former_places(EndpointPickerConfig, ()))


def _former_places(part: type[Part], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    for name, field in fields_of(part).items():
        inner = part_in(field.annotation)
        if inner is not None:
            yield from _former_places(inner, (*path, name))
        yield from (((*path, name), tuple(mark.successor.split("."))) for mark in field.metadata if isinstance(mark, Deprecated))


def check_versions(config: EndpointPickerConfig, parts: Sequence[Part], source: SourceMap) -> Iterator[Diagnostic]:
    """Yield diagnostics about apiVersion and its fields, unordered."""
    version = config.api_version
    moved: list[str] = []
    for part in parts:
        for name, field, _ in present_fields(part):
            path = (*part.path, name)
            for mark in field.metadata:
                match mark:
                    case EndpickOnly() if version != ENDPICK:
                        yield _foreign(path, version, Code.E0206, f"write 'apiVersion: {ENDPICK}', or remove '{name}'", source)
                    case SinceV1() if version in ALPHA_VERSIONS:
                        yield _foreign(path, version, Code.E0214, f"write 'apiVersion: {LLM_D}'; {_REWRITE}", source)
                    case Deprecated() if version == LLM_D:
                        yield _foreign(path, version, Code.E0214, f"use {mark.successor}", source)
                    case Moved() if version in ALPHA_VERSIONS:
                        moved.append(f"'{show_path(path)}' becomes '{mark.successor}'")
                    case Deprecated():
                        hint = f"use {mark.successor}"
                        yield Diagnostic(Code.W0203, f"'{name}' is deprecated", source.key_span(path), help=hint, path=path)
    if version in ALPHA_VERSIONS:
        yield _deprecated_version(version, tuple(moved), source)
    yield from _overridden_fields(version, source)


def _foreign(path: DocumentPath, version: str, code: Code, advice: str, source: SourceMap) -> Diagnostic:
    labels = (*source.labels_for(path), Label(source.value_span(("apiVersion",)), "declared here"))
    return Diagnostic(code, f"'{path[-1]}' is not a field of apiVersion {version}", source.key_span(path), labels, advice, path=path)


def _deprecated_version(version: str, moved: tuple[str, ...], source: SourceMap) -> Diagnostic:
    fate = "llm-d no longer reads it" if version == FORMER_GROUP else "a later release of llm-d removes it"
    path = ("apiVersion",)
    return Diagnostic(
        Code.W0202, f"the apiVersion {version} is deprecated: {fate}", source.value_span(path), help=_REWRITE, notes=moved, path=path
    )


def _overridden_fields(version: str, source: SourceMap) -> Iterator[Diagnostic]:
    for former, successor in former_places() if version != LLM_D else ():
        if value_at(source.data, former) and value_at(source.data, successor):
            name = show_path(former)
            yield Diagnostic(
                Code.W0205,
                f"'{name}' has no effect beside {show_path(successor)}",
                source.key_span(former),
                labels=(Label(source.key_span(successor), "this is used"),),
                help=f"remove '{name}'",
                path=former,
            )
