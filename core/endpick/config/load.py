"""Loads a configuration without its faulty parts, and reports every mistake in one run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from endpick.config.checks import check_document
from endpick.config.model import EndpointPickerConfig
from endpick.config.shape import check_shape, value_at
from endpick.config.source import SourceMap, read_source
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span, has_errors, sort_diagnostics

DEFAULT_NAME = "<default>"

_MISREAD = frozenset({Code.E0103, Code.E0104, Code.E0112, Code.E0203, Code.E0207, Code.E0213})
"""Mistakes after which the document holds a substitute for the value."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, with diagnostics in document order."""

    config: EndpointPickerConfig | None  # without faulty parts; None if nothing can be checked
    source: SourceMap
    diagnostics: tuple[Diagnostic, ...]
    path: str  # as in every span
    faulty: frozenset[DocumentPath] = frozenset()  # missing from `config`

    @property
    def has_errors(self) -> bool:
        """True if there are errors."""
        return has_errors(self.diagnostics)

    def is_damaged(self, path: DocumentPath) -> bool:
        """True if a faulty part at, in or around a path is missing from `config`."""
        return any(path[: len(faulty)] == faulty or faulty[: len(path)] == path for faulty in self.faulty)

    def without_echoes(self, later: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
        """Diagnostics of later phases, except those about unreadable values."""
        misread = _misread(self.diagnostics, self.source)
        return (found for found in later if found.span not in misread or found in self.diagnostics)

    def may_define(self, name: str) -> bool:
        """True if a faulty entry of `plugins` may define this name."""
        if ("plugins",) in self.faulty:
            return True
        entries = [path for path in self.faulty if len(path) == 2 and path[0] == "plugins"]
        meant = [_meant_name(value_at(self.source.data, path)) for path in entries]
        return any(meant_name in (None, name) for meant_name in meant)


def load_config(path: str | os.PathLike[str] | None = None, *, text: str | bytes | None = None, name: str = "<text>") -> LoadedConfig:
    """Read and check a configuration; every mistake is a diagnostic.

    Without `path` and `text` the built-in default is loaded; `name` is that of `text` in diagnostics.
    """
    if text is not None:
        return load_bytes(text.encode("utf-8", errors="surrogatepass") if isinstance(text, str) else text, name)
    if path is None:
        return load_bytes(files(__package__).joinpath("default.yaml").read_bytes(), DEFAULT_NAME)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        return _unreadable(os.fspath(path), error)
    return load_bytes(raw, os.fspath(path))


def load_bytes(raw: bytes, name: str) -> LoadedConfig:
    """Check the content of a file."""
    source, mistakes = read_source(raw, name)
    if not source.places:
        return LoadedConfig(None, source, mistakes, name)
    shape = check_shape(source)
    checks = () if shape.config is None else check_document(shape.config, source)
    misread = _misread(mistakes, source)
    later = (found for found in (*shape.diagnostics, *checks) if found.span not in misread)
    return LoadedConfig(shape.config, source, sort_diagnostics((*mistakes, *later)), name, shape.faulty)


def _unreadable(path: str, error: OSError | ValueError) -> LoadedConfig:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    diagnostic = Diagnostic(
        Code.E0110, f"'{path}' cannot be read: {reason}", Span.start_of(path), help="check the path and its permissions"
    )
    return LoadedConfig(None, SourceMap(path, ""), (diagnostic,), path)


def _misread(mistakes: Iterable[Diagnostic], source: SourceMap) -> frozenset[Span]:
    return frozenset(source.value_span(mistake.path) for mistake in mistakes if mistake.code in _MISREAD)


def _meant_name(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return entry if isinstance(entry, str) else None
    name = entry.get("name") or entry.get("type")
    return name if isinstance(name, str) else None


def documents_of(text: str) -> list[object]:
    """All documents of a YAML text as plain data; raises ValueError if it is invalid."""
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    try:
        return list(yaml.load_all(text))
    # ruamel raises the others for values that do not fit their tag.
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ValueError(str(problem)) from problem
