"""What a class must be to serve as a plugin: checked right after import, each failure under its own code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from endpick.api.data import DataKey
from endpick.api.datalayer import DataSource, PollingSource, PoolSource, StreamSource
from endpick.api.plugin import Kind, Parameters, Plugin, PluginMeta, kinds_of
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.discovery import Candidate
from endpick.plugins.reference import Reference
from endpick.plugins.signature import signature_faults
from endpick.versions import API_VERSION


def check_contract(reference: Reference, candidate: Candidate, value: object) -> tuple[Diagnostic, ...]:
    """Why an imported object cannot serve as the plugin it was announced as; empty when it can."""
    if not isinstance(value, type) or not issubclass(value, Plugin):
        return (_not_a_plugin_class(reference, candidate, value),)
    faults = (*_meta_faults(reference, candidate, value), *_class_faults(reference, candidate, value))
    return tuple(faults)


def _blame(candidate: Candidate) -> str:
    return f"this has to be corrected in {candidate.distribution}; report it to its author, or install another release"


def _not_a_plugin_class(reference: Reference, candidate: Candidate, value: object) -> Diagnostic:
    found = f"the class {value.__qualname__}" if isinstance(value, type) else f"an object of type {type(value).__qualname__}"
    if inspect.ismodule(value):
        found = f"the module {value.__name__}"
    return reference.diagnostic(
        Code.E0309,
        f"the entry point of '{candidate.type}' in {candidate.origin} leads to {found}, not to a plugin class",
        candidate,
        annotation=f"leads to {candidate.target}",
        help=_blame(candidate),
        notes=("a plugin is a class that derives from a kind of endpick.api, such as Scorer",),
    )


def _class_faults(reference: Reference, candidate: Candidate, plugin: type[Plugin[Parameters]]) -> Iterable[Diagnostic]:
    name = f"{plugin.__qualname__} in {candidate.origin}"
    if not kinds_of(plugin):
        kinds = ", ".join(kind.value for kind in Kind)
        yield reference.diagnostic(
            Code.E0310,
            f"the plugin class {name} is of no kind",
            candidate,
            help=_blame(candidate),
            notes=(f"it derives from Plugin only; the kinds are {kinds}",),
        )
    if issubclass(plugin, DataSource) and not issubclass(plugin, PollingSource | StreamSource | PoolSource):
        yield reference.diagnostic(
            Code.E0310,
            f"the data source {name} does not say how it delivers",
            candidate,
            help=_blame(candidate),
            notes=("it derives from DataSource only, not from PollingSource, StreamSource or PoolSource",),
        )
    missing = _unimplemented(plugin)
    if missing:
        yield reference.diagnostic(
            Code.E0311,
            f"the plugin class {name} does not implement {', '.join(f'`{method}`' for method in missing)}",
            candidate,
            help=_blame(candidate),
        )
    for fault in signature_faults(plugin):
        yield reference.diagnostic(
            Code.E0313,
            f"`{fault.method}` of the plugin class {name} {fault.reason}",
            candidate,
            help=_blame(candidate),
        )


def _unimplemented(plugin: type) -> list[str]:
    """Abstract methods that no class of the plugin overrides; `Plugin` is not an ABC, so Python itself does not look."""
    return sorted(name for name in dir(plugin) if getattr(inspect.getattr_static(plugin, name), "__isabstractmethod__", False))


def _meta_faults(reference: Reference, candidate: Candidate, plugin: type[Plugin[Parameters]]) -> Iterable[Diagnostic]:
    meta = getattr(plugin, "meta", None)
    if not isinstance(meta, PluginMeta):
        found = "has no `meta`" if meta is None else f"has a `meta` that is no PluginMeta but {meta!r}"
        yield _malformed(reference, candidate, f"the plugin class {plugin.__qualname__} in {candidate.origin} {found}")
        return
    try:
        accepted = SpecifierSet(meta.api)
    except (InvalidSpecifier, TypeError, AttributeError):
        message = f"the `meta.api` of '{candidate.type}' in {candidate.origin} is not a version range: {meta.api!r}"
        yield _malformed(reference, candidate, message)
    else:
        if not accepted.contains(API_VERSION, prereleases=True):
            yield _other_api(reference, candidate, meta)
    if meta.type != candidate.type and candidate.type not in meta.aliases:
        yield _other_type(reference, candidate, plugin, meta)
    yield from (_malformed(reference, candidate, message) for message in _field_faults(candidate, meta))


def _field_faults(candidate: Candidate, meta: PluginMeta) -> Iterable[str]:
    whose = f"of '{candidate.type}' in {candidate.origin}"
    parameters: object = meta.parameters
    if not isinstance(parameters, type) or not issubclass(parameters, Parameters):
        yield f"the `meta.parameters` {whose} is not a subclass of endpick.api.Parameters"
    if meta.payload is not None and not isinstance(meta.payload, type):
        yield f"the `meta.payload` {whose} is not a class"
    for field in ("consumes", "consumes_optional", "produces"):
        keys = getattr(meta, field)
        if not isinstance(keys, tuple) or not all(isinstance(key, DataKey) for key in keys):
            yield f"the `meta.{field}` {whose} is not a tuple of data keys"


def _malformed(reference: Reference, candidate: Candidate, message: str) -> Diagnostic:
    return reference.diagnostic(Code.E0318, message, candidate, help=_blame(candidate))


def _other_api(reference: Reference, candidate: Candidate, meta: PluginMeta) -> Diagnostic:
    return reference.diagnostic(
        Code.E0306,
        f"'{candidate.type}' from {candidate.origin} needs plugin API {meta.api}; this host provides {API_VERSION}",
        candidate,
        help=f"install an endpick whose plugin API is in {meta.api}, or a release of {candidate.distribution} for plugin API {API_VERSION}",
    )


def _other_type(reference: Reference, candidate: Candidate, plugin: type, meta: PluginMeta) -> Diagnostic:
    inherited = "meta" not in vars(plugin)
    return reference.diagnostic(
        Code.E0312,
        f"the entry point '{candidate.type}' of {candidate.origin} leads to a plugin that calls itself '{meta.type}'",
        candidate,
        annotation=f"its `meta.type` is '{meta.type}'",
        help=_blame(candidate),
        notes=(f"{plugin.__qualname__} inherits `meta`; a subclass needs its own",) if inherited else (),
    )
