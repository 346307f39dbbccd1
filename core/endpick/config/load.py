"""Loads a configuration without its faulty parts, and reports every mistake in one run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from endpick.config.gates import DEFAULT_GATES, parse_gate
from endpick.config.model import DataSourceSpec, EndpointPickerConfig, Part, PriorityBand, ProfilePlugin
from endpick.config.shape import check_shape, present_fields, shorten, value_at
from endpick.config.source import SourceMap, read_source
from endpick.config.upstream import find_name
from endpick.config.versions import check_versions
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, Span, did_you_mean, has_errors, sort_diagnostics
from endpick.diagnostics.model import ascii_look_alike

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
        """Whether a diagnostic is an error."""
        return has_errors(self.diagnostics)

    def is_damaged(self, path: DocumentPath) -> bool:
        """Return whether a faulty part at, in or around a path is missing from `config`."""
        return any(path[: len(faulty)] == faulty or faulty[: len(path)] == path for faulty in self.faulty)

    def without_echoes(self, later: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
        """Yield the diagnostics of later phases, except those about unreadable values."""
        misread = _misread(self.diagnostics, self.source)
        return (found for found in later if found.span not in misread or found in self.diagnostics)

    def may_define(self, name: str) -> bool:
        """Return whether a faulty entry of `plugins` may define this name."""
        if ("plugins",) in self.faulty:
            return True
        entries = [path for path in self.faulty if len(path) == 2 and path[0] == "plugins"]
        meant = [_meant_name(value_at(self.source.data, path)) for path in entries]
        return any(meant_name in (None, name) for meant_name in meant)


def load_config(
    path: str | os.PathLike[str] | None = None, *, text: str | bytes | None = None, name: str = "<text>", gates: tuple[str, ...] = ()
) -> LoadedConfig:
    """Read and check a configuration; every mistake is a diagnostic.

    Without `path` and `text` the built-in default is loaded; `name` is that of `text` in diagnostics. `gates` override `featureGates`.
    """
    if text is not None:
        return load_bytes(text.encode("utf-8", errors="surrogatepass") if isinstance(text, str) else text, name, gates)
    if path is None:
        return load_bytes(files(__package__).joinpath("default.yaml").read_bytes(), DEFAULT_NAME, gates)
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        return _unreadable(os.fspath(path), error)
    return load_bytes(raw, os.fspath(path), gates)


def load_bytes(raw: bytes, name: str, gates: tuple[str, ...] = ()) -> LoadedConfig:
    """Read and check the content of a file; `name` is its name in diagnostics."""
    source, mistakes = read_source(raw, name)
    if not source.places:
        return LoadedConfig(None, source, mistakes, name)
    shape = check_shape(source)
    config = shape.config
    if config is not None and gates:
        config = config.model_copy(update={"feature_gates": (*config.feature_gates, *gates)})
    checks = () if config is None else check_document(config, source)
    misread = _misread(mistakes, source)
    later = (found for found in (*shape.diagnostics, *checks) if found.span not in misread)
    return LoadedConfig(config, source, sort_diagnostics((*mistakes, *later)), name, shape.faulty)


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
    """Return all documents of a YAML text as plain data; raises ValueError if it is invalid."""
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    try:
        return list(yaml.load_all(text))
    # ruamel raises the others for values that do not fit their tag.
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ValueError(str(problem)) from problem


_NAME_FIELDS = frozenset({"name", "type", "pluginRef", "from"})


def check_document(config: EndpointPickerConfig, source: SourceMap) -> tuple[Diagnostic, ...]:
    """Return the mistakes and warnings of a configuration that has the right shape, unordered."""
    parts = tuple(_parts(config))
    return (
        *check_versions(config, parts, source),
        *_gates(config, source),
        *_flow_control_without_gate(config, source),
        *(found for part in parts for found in _look_alikes(part, source)),
        *(found for part in parts if isinstance(part, ProfilePlugin) for found in _negative_weight(part, source)),
        *(found for part in parts if isinstance(part, DataSourceSpec) for found in _two_names(part, source)),
        *_same_priority(config, source),
        *_variables(source.data, (), source),
    )


_VARIABLE = re.compile(r"\$\{\w+[^}]*\}|\$\(\w+\)")


def _variables(value: object, path: DocumentPath, source: SourceMap) -> Iterator[Diagnostic]:
    if isinstance(value, str) and (found := _VARIABLE.search(value)):
        yield source.diagnostic(
            Code.W0208,
            f"nothing fills in {shorten(found[0])}: the value is this text",
            path,
            "write the value itself, or fill the file in before: envsubst < FILE | endpick serve -",
        )
    for segment, inner in _inner(value):
        yield from _variables(inner, (*path, segment), source)


def _inner(value: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def _parts(part: Part) -> Iterator[Part]:
    yield part
    for _, _, value in present_fields(part):
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Part):
                yield from _parts(child)


def _gates(config: EndpointPickerConfig, source: SourceMap) -> Iterator[Diagnostic]:
    written = source.data.get("featureGates") if isinstance(source.data, dict) else None
    for index, entry in enumerate(written if isinstance(written, list) and config.feature_gates else ()):
        path = ("featureGates", index)
        if not isinstance(entry, str):
            continue
        gate = parse_gate(entry)
        if gate is None:
            message = f"the feature gate '{shorten(entry)}' is set to neither true nor false"
            yield source.diagnostic(Code.E0205, message, path, "write 'name' or 'name=false'")
        elif gate[0] not in DEFAULT_GATES:
            name = gate[0]
            upstream = find_name("gate", name)
            hint = (upstream and upstream.advice) or did_you_mean(name, DEFAULT_GATES)
            hint = hint or f"known gates are {', '.join(sorted(DEFAULT_GATES))}"
            yield source.diagnostic(Code.E0208, f"'{shorten(name)}' is not a feature gate", path, hint)


def _flow_control_without_gate(config: EndpointPickerConfig, source: SourceMap) -> Iterator[Diagnostic]:
    if config.flow_control is None or config.gates["flowControl"]:
        return
    if config.flow_control.model_fields_set - {"saturation_detector"}:
        path = ("flowControl",)
        yield Diagnostic(
            Code.W0204,
            "flowControl has no effect while the feature gate 'flowControl' is off",
            source.key_span(path),
            help="add 'featureGates: [flowControl]', or remove the section",
            notes=("flowControl.saturationDetector is used all the same",) if config.flow_control.saturation_detector else (),
            path=path,
        )


def _look_alikes(part: Part, source: SourceMap) -> Iterator[Diagnostic]:
    for name, _, value in present_fields(part):
        if name in _NAME_FIELDS and isinstance(value, str) and not value.isascii():
            plain = ascii_look_alike(value)
            if plain != value and plain.isascii():
                path = (*part.path, name)
                odd = next(character for character in value if not character.isascii())
                yield source.diagnostic(
                    Code.W0206,
                    f"'{shorten(value)}' looks like '{shorten(plain)}' but is another name",
                    path,
                    f"it contains U+{ord(odd):04X}; type the name again with plain letters",
                )


def _negative_weight(reference: ProfilePlugin, source: SourceMap) -> Iterator[Diagnostic]:
    if reference.weight is not None and reference.weight < 0:
        yield source.diagnostic(
            Code.W0207,
            f"the weight of '{shorten(reference.plugin_ref)}' is negative",
            (*reference.path, "weight"),
            "a negative weight prefers what the scorer rates worst; is that meant?",
        )


def _two_names(spec: DataSourceSpec, source: SourceMap) -> Iterator[Diagnostic]:
    if spec.collectors is not None and spec.extractors is not None:
        path = (*spec.path, "collectors")
        yield Diagnostic(
            Code.E0212,
            "'collectors' and 'extractors' are two names of one field",
            source.key_span(path),
            labels=(Label(source.key_span((*spec.path, "extractors")), "the other is here"),),
            help="put all of them under 'collectors'",
            path=path,
        )


def _same_priority(config: EndpointPickerConfig, source: SourceMap) -> Iterator[Diagnostic]:
    first: dict[int, PriorityBand] = {}
    for band in config.flow_control.priority_bands if config.flow_control is not None else ():
        path = (*band.path, "priority")
        if "priority" not in band.model_fields_set and path in source:
            continue  # no valid priority, already reported
        earlier = first.setdefault(band.priority, band)
        if earlier is not band:
            yield Diagnostic(
                Code.E0211,
                f"two priority bands have the priority {band.priority}",
                source.value_span(path),
                labels=(Label(source.value_span((*earlier.path, "priority")), "first given here"),),
                help="merge the two bands, or change one priority",
                path=path,
            )
