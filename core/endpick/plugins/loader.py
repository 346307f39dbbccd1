"""Loads plugin classes: imports a candidate, checks what it finds, and says whose fault a failure is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from endpick.api.plugin import Kind, Parameters, Plugin, PluginMeta, Stability, kinds_of
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.attribution import Output
from endpick.plugins.contract import check_contract
from endpick.plugins.discovery import Candidate
from endpick.plugins.importing import import_target
from endpick.plugins.reference import Reference
from endpick.plugins.requirements import requirements_of, unmet_requirements
from endpick.plugins.schema import Schema, schemas_of

SLOW_IMPORT_SECONDS = 2.0
_LONGEST_QUOTE = 400


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin class that has passed every check."""

    candidate: Candidate
    plugin: type[Plugin[Parameters]]
    meta: PluginMeta
    kinds: tuple[Kind, ...]
    schemas: tuple[Schema, ...] = field(repr=False, compare=False)
    """What a `parameters:` block must satisfy; the last is the one to show."""

    load_seconds: float
    """How long its import took; nearly nothing when another plugin had imported the module before."""

    output: str
    """What it printed and warned while being imported."""

    @property
    def type(self) -> str:
        """Its own name, also where an alias led to it."""
        return self.meta.type

    @property
    def summary(self) -> str:
        """First line of its docstring; empty when it has none of its own."""
        return next(iter((self.plugin.__dict__.get("__doc__") or "").strip().splitlines()), "")


@dataclass(frozen=True, slots=True)
class Loading:
    """The outcome for one reference: a plugin, unless there is an error among the diagnostics."""

    loaded: LoadedPlugin | None
    diagnostics: tuple[Diagnostic, ...] = ()


def load(candidate: Candidate, reference: Reference, unmet: tuple[str, ...] | None = None) -> Loading:
    """Import one candidate on behalf of a reference. Policy and lock are judged before; nothing that fails is kept.

    `unmet` says which requirements of its distribution are not met. Reading them is slow, so whoever loads several types of one
    distribution finds them once, with `unmet_requirements`; they are looked up unless given.
    """
    if unmet is None:
        unmet = unmet_requirements(requirements_of(candidate.distribution))
    imported = import_target(reference, candidate)
    if isinstance(imported, Diagnostic):
        return Loading(None, (_with_notes(imported, unmet),))
    faults = check_contract(reference, candidate, imported.value)
    if not faults and unmet:
        faults = (_requirements_unmet(reference, candidate, unmet),)
    if faults:
        return Loading(None, faults)
    plugin = cast("type[Plugin[Parameters]]", imported.value)
    schemas = schemas_of(reference, candidate, plugin.meta)
    if isinstance(schemas, Diagnostic):
        return Loading(None, (schemas,))
    loaded = LoadedPlugin(candidate, plugin, plugin.meta, kinds_of(plugin), schemas, imported.seconds, _transcript(imported.output))
    return Loading(loaded, tuple(_warnings(reference, loaded, imported.output)))


def alias_clashes(plugins: Iterable[tuple[Reference, LoadedPlugin]]) -> tuple[Diagnostic, ...]:
    """An error for each loaded plugin that claims a former name which another loaded plugin claims, or bears, as well."""
    claims: dict[str, LoadedPlugin] = {}
    found = []
    loaded_once = {(plugin.candidate.distribution, plugin.type): (reference, plugin) for reference, plugin in plugins}
    for _, plugin in loaded_once.values():
        claims.setdefault(plugin.type, plugin)
    for reference, plugin in loaded_once.values():
        for alias in plugin.meta.aliases:
            first = claims.setdefault(alias, plugin)
            if first.plugin is not plugin.plugin:
                found.append(
                    reference.diagnostic(
                        Code.E0314,
                        f"'{plugin.type}' from {plugin.candidate.origin} claims the former name '{alias}', "
                        f"which belongs to '{first.type}' from {first.candidate.origin}",
                        plugin.candidate,
                        help="use only one of the two plugins, and tell their authors",
                    )
                )
    return tuple(found)


def _with_notes(diagnostic: Diagnostic, unmet: tuple[str, ...]) -> Diagnostic:
    return replace(diagnostic, notes=(*diagnostic.notes, *(f"unmet requirement: {sentence}" for sentence in unmet)))


def _requirements_unmet(reference: Reference, candidate: Candidate, unmet: tuple[str, ...]) -> Diagnostic:
    return reference.diagnostic(
        Code.E0317,
        f"requirements of {candidate.origin} are not met: {'; '.join(unmet)}",
        candidate,
        help=f"run `pip install {candidate.distribution}=={candidate.version}` to install what it needs",
    )


def _warnings(reference: Reference, loaded: LoadedPlugin, output: Output) -> Iterator[Diagnostic]:
    candidate, meta = loaded.candidate, loaded.meta
    if candidate.type != meta.type:
        yield reference.diagnostic(
            Code.W0303, f"'{candidate.type}' is a former name of '{meta.type}'", candidate, help=f"write `type: {meta.type}`"
        )
    if meta.stability is Stability.DEPRECATED:
        replacement = f"use '{meta.replaced_by}' instead" if meta.replaced_by else "look for another plugin"
        yield reference.diagnostic(Code.W0304, f"'{meta.type}' from {candidate.origin} is deprecated", candidate, help=replacement)
    if meta.stability is Stability.EXPERIMENTAL:
        yield reference.diagnostic(
            Code.W0309,
            f"'{meta.type}' from {candidate.origin} is experimental",
            candidate,
            help=f"expect it to change; pin {candidate.distribution}",
        )
    if output.text:
        yield reference.diagnostic(
            Code.W0306,
            f"'{meta.type}' from {candidate.origin} printed something while it was imported",
            candidate,
            help="report it to its author: a plugin should use logging",
            notes=(f"it printed:\n{_quoted(output.text)}",),
        )
    if output.warnings:
        yield reference.diagnostic(
            Code.W0307, f"'{meta.type}' from {candidate.origin} warned while it was imported", candidate, notes=_warned(output)
        )
    if loaded.load_seconds > SLOW_IMPORT_SECONDS:
        yield reference.diagnostic(
            Code.W0308,
            f"importing '{meta.type}' from {candidate.origin} took {loaded.load_seconds:.1f} s",
            candidate,
            help="report it to its author: heavy modules should be imported when they are needed",
        )


def _quoted(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}… ({len(text)} characters)"


def _warned(output: Output) -> tuple[str, ...]:
    return tuple(f"{warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})" for warning in output.warnings)


def _transcript(output: Output) -> str:
    return "\n".join([*([output.text.rstrip()] if output.text else []), *_warned(output)])
