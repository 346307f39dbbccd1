"""Reads a configuration and checks it: every mistake in one run, and the document without its faulty parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files

from endpick.config.checks import check_document
from endpick.config.model import EndpointPickerConfig
from endpick.config.shape import check_shape, value_at
from endpick.config.source import MAX_BYTES, SourceMap, read_source
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span, has_errors, sort_diagnostics
from endpick.files import open_regular, read_given

DEFAULT_NAME = "<default>"

_MISREAD = frozenset({Code.E0103, Code.E0104, Code.E0112, Code.E0203, Code.E0207, Code.E0213})
"""Mistakes after which the document holds a substitute for the value that was written."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration as far as it could be read."""

    config: EndpointPickerConfig | None
    """The document without its faulty parts; None when the file holds nothing that can be checked."""

    source: SourceMap
    diagnostics: tuple[Diagnostic, ...]
    """In document order."""

    path: str
    """The name of the file, as in every span."""

    faulty: frozenset[DocumentPath] = frozenset()
    """What is missing from `config` because it was faulty."""

    @property
    def has_errors(self) -> bool:
        """Whether anything prevents the start."""
        return has_errors(self.diagnostics)

    def is_damaged(self, path: DocumentPath) -> bool:
        """Whether `config` lacks something at, in or around a path, so that what seems to be missing there may not be."""
        return any(path[: len(faulty)] == faulty or faulty[: len(path)] == path for faulty in self.faulty)

    def without_echoes(self, later: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
        """The diagnostics of later phases without those about values that could not be read: NaN is not also out of range.

        Diagnostics of this configuration itself may be among `later`; they stay.
        """
        misread = _misread(self.diagnostics, self.source)
        return (found for found in later if found.span not in misread or found in self.diagnostics)

    def may_define(self, name: str) -> bool:
        """Whether a faulty entry of `plugins` may be the definition of an instance of this name."""
        if ("plugins",) in self.faulty:
            return True
        entries = [path for path in self.faulty if len(path) == 2 and path[0] == "plugins"]
        meant = [_meant_name(value_at(self.source.data, path)) for path in entries]
        return any(meant_name in (None, name) for meant_name in meant)


def load_config(path: str | os.PathLike[str] | None = None, *, text: str | bytes | None = None, name: str = "<text>") -> LoadedConfig:
    """Read and check a configuration.

    Reads the file at `path`, or `text`, which diagnostics call `name`; with neither, the built-in default. A mistake in
    the file, or a file that cannot be read, is a diagnostic and never an exception.
    """
    if text is not None:
        return load_bytes(text.encode("utf-8", errors="surrogatepass") if isinstance(text, str) else text, name)
    if path is None:
        return load_bytes(files(__package__).joinpath("default.yaml").read_bytes(), DEFAULT_NAME)
    return _load_file(path, read_given)


def load_config_again(path: str | os.PathLike[str]) -> LoadedConfig:
    """As `load_config`, while requests are served: it waits for nothing, so what has become a pipe or a device cannot be read."""
    return _load_file(path, _read_regular)


def _read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    with open_regular(path) as file:
        return file.read(most_bytes)


def _load_file(path: str | os.PathLike[str], read: Callable[[str | os.PathLike[str], int], bytes]) -> LoadedConfig:
    try:
        # One byte beyond the limit is enough to refuse a file, and a device or a pipe may never end.
        raw = read(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return _unreadable(os.fspath(path), error)
    return load_bytes(raw, os.fspath(path))


def load_bytes(raw: bytes, name: str) -> LoadedConfig:
    """Check what a configuration file contains."""
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
        Code.E0110,
        f"'{path}' cannot be read: {reason}",
        Span.start_of(path),
        help="check the path and its permissions",
    )
    return LoadedConfig(None, SourceMap(path, ""), (diagnostic,), path)


def _misread(mistakes: Iterable[Diagnostic], source: SourceMap) -> frozenset[Span]:
    """The places of the values that could not be read as written."""
    return frozenset(source.value_span(mistake.path) for mistake in mistakes if mistake.code in _MISREAD)


def _meant_name(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return entry if isinstance(entry, str) else None
    name = entry.get("name") or entry.get("type")
    return name if isinstance(name, str) else None
