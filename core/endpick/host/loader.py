"""Resolves, imports and checks plugin classes."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import cast

from endpick import __version__
from endpick.api.plugin import Parameters, Plugin, Stability
from endpick.config import EndpointPickerConfig
from endpick.diagnostics import Code, Diagnostic
from endpick.host.contract import check_contract
from endpick.host.discovery import HOST_DISTRIBUTION, Candidate, UnmetRequirement, discover, find, unmet_of
from endpick.host.environment import LockCheck
from endpick.host.importing import CapturedOutput, import_target
from endpick.host.kinds import Kind, kinds_of
from endpick.host.resolution import Policy, Reference, check_policy, resolve
from endpick.host.schema import Schema, fault_of_schemas, schemas_of

SLOW_IMPORT_SECONDS = 2.0
_LONGEST_QUOTE = 400

_version_of: dict[tuple[str, str], str] = {}
"""By distribution and module, when the module was imported: a later installation does not change the code that runs."""


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin class that passed every check."""

    candidate: Candidate
    plugin: type[Plugin[Parameters]]
    type: str  # name of the entry point; for an alias, the current name
    kinds: tuple[Kind, ...]
    load_seconds: float  # of the import
    output: str  # of the import, with warnings

    @property
    def schemas(self) -> tuple[Schema, ...]:
        """The schemas of a `parameters:` block; the last is for display."""
        return schemas_of(self.plugin)

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        own = self.plugin.__dict__.get("__doc__") or _docstring_in_source(self.plugin)
        return next(iter(own.strip().splitlines()), "")

    @property
    def description(self) -> str:
        """The class's docstring, else that of its kind."""
        return inspect.getdoc(self.plugin) or inspect.cleandoc(_docstring_in_source(self.plugin))


def _docstring_in_source(plugin: type) -> str:
    origin = getattr(sys.modules[plugin.__module__].__spec__, "origin", None) or ""
    if not origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return ""
    source = Path(origin).with_name(f"{plugin.__module__.rpartition('.')[2]}.py")
    if not source.is_file():
        return ""
    classes = (node for node in ast.parse(source.read_bytes()).body if isinstance(node, ast.ClassDef))
    return next((ast.get_docstring(node) or "" for node in classes if node.name == plugin.__name__), "")


@dataclass(frozen=True, slots=True)
class Loading:
    """The result of loading: a plugin or errors, and warnings in either case."""

    loaded: LoadedPlugin | None
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class _Subject:
    """`value` is a plugin class once the contract is checked."""

    reference: Reference
    candidate: Candidate
    value: object
    unmet: tuple[UnmetRequirement, ...]
    offers: Sequence[Candidate]

    @property
    def plugin(self) -> type[Plugin[Parameters]]:
        return cast("type[Plugin[Parameters]]", self.value)


def load(
    candidate: Candidate, reference: Reference, unmet: tuple[UnmetRequirement, ...] | None = None, offers: Sequence[Candidate] = ()
) -> Loading:
    """Import and check a candidate; the first failed check refuses it. Policy and lock are not checked.

    If `unmet` is None, requirements are looked up, except those of endpick. `offers` hold the current name of an alias.
    """
    if unmet is None:
        unmet = () if candidate.is_builtin else unmet_of(candidate.distribution)
    other_host = _needs_another_endpick(candidate, reference, unmet)
    if other_host is not None:
        return Loading(None, (other_host,))
    is_new = candidate.module not in sys.modules
    imported = import_target(reference, candidate)
    if isinstance(imported, Diagnostic):
        notes = (f"unmet requirement: {sentence}" for sentence in unmet or unmet_of(candidate.distribution))
        return Loading(None, (replace(imported, notes=(*imported.notes, *notes)),))
    subject = _Subject(reference, candidate, imported.value, unmet, offers)
    for check in _CHECKS:
        faults = check(subject)
        if faults:
            return Loading(None, faults)
    transcript = "\n".join([*([imported.output.text.rstrip()] if imported.output.text else []), *_warned(imported.output)])
    key = (candidate.distribution, candidate.module)
    version = candidate.version if is_new else _version_of.get(key, candidate.version)
    _version_of[key] = version
    plugin = subject.plugin
    name = _current_name(candidate, plugin, offers) or candidate.type
    loaded = LoadedPlugin(replace(candidate, version=version), plugin, name, kinds_of(plugin), imported.seconds, transcript)
    return Loading(loaded, tuple(_warnings(reference, loaded, imported.output)))


def _needs_another_endpick(candidate: Candidate, reference: Reference, unmet: Iterable[UnmetRequirement]) -> Diagnostic | None:
    host = next((requirement for requirement in unmet if requirement.distribution == HOST_DISTRIBUTION), None)
    if host is None:
        return None
    return reference.diagnostic(
        Code.E0306,
        f"'{candidate.type}' from {candidate.origin} needs {host.requirement}; this is endpick {__version__}",
        candidate,
        help=f"install {host.requirement}, or a release of {candidate.distribution} for endpick {__version__}",
    )


def _keeps_the_contract(subject: _Subject) -> tuple[Diagnostic, ...]:
    return check_contract(subject.reference, subject.candidate, subject.value)


def _has_its_requirements(subject: _Subject) -> tuple[Diagnostic, ...]:
    if not subject.unmet:
        return ()
    candidate = subject.candidate
    message = f"requirements of {candidate.origin} are not met: {'; '.join(map(str, subject.unmet))}"
    repair = f"run `pip install {candidate.distribution}=={candidate.version}` to install what it needs"
    return (subject.reference.diagnostic(Code.E0317, message, candidate, help=repair),)


def _has_valid_schemas(subject: _Subject) -> tuple[Diagnostic, ...]:
    if subject.candidate.is_builtin:  # tests check these; here it would take 5 ms for each at every start
        return ()
    wrong = fault_of_schemas(subject.reference, subject.candidate, subject.plugin)
    return () if wrong is None else (wrong,)


def _has_a_current_name(subject: _Subject) -> tuple[Diagnostic, ...]:
    if _current_name(subject.candidate, subject.plugin, subject.offers) is not None:
        return ()
    candidate = subject.candidate
    fault = subject.reference.diagnostic(
        Code.E0312,
        f"'{candidate.type}' is a former name by its class's `aliases`, and {candidate.origin} has no entry point with the current name",
        candidate,
        annotation=f"leads to {candidate.target}",
        help=f"report it to the author of {candidate.distribution}: the type itself needs an entry point, too",
    )
    return (fault,)


_CHECKS: tuple[Callable[[_Subject], tuple[Diagnostic, ...]], ...] = (
    _keeps_the_contract,
    _has_its_requirements,
    _has_valid_schemas,
    _has_a_current_name,
)


def alias_clashes(plugins: Iterable[tuple[Reference, LoadedPlugin]]) -> tuple[Diagnostic, ...]:
    """Return an error for each alias that is also another plugin's name or alias."""
    claims: dict[str, LoadedPlugin] = {}
    found = []
    loaded_once = {(plugin.candidate.distribution, plugin.type): (reference, plugin) for reference, plugin in plugins}
    for _, plugin in loaded_once.values():
        claims.setdefault(plugin.type, plugin)
    for reference, plugin in loaded_once.values():
        for alias in plugin.plugin.aliases:
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


def _current_name(candidate: Candidate, plugin: type[Plugin[Parameters]], offers: Sequence[Candidate]) -> str | None:
    """The name to use instead of an alias; None if no entry point has it."""
    if candidate.type not in plugin.aliases:
        return candidate.type
    known = offers or discover()
    current = (offer.type for offer in known if (offer.distribution, offer.target) == (candidate.distribution, candidate.target))
    return next((name for name in current if name not in plugin.aliases), None)


def _warnings(reference: Reference, loaded: LoadedPlugin, output: CapturedOutput) -> Iterator[Diagnostic]:
    candidate, plugin = loaded.candidate, loaded.plugin
    if candidate.type != loaded.type:
        yield reference.diagnostic(
            Code.W0303, f"'{candidate.type}' is a former name of '{loaded.type}'", candidate, help=f"write `type: {loaded.type}`"
        )
    if plugin.stability is Stability.DEPRECATED:
        replacement = f"use '{plugin.replaced_by}' instead" if plugin.replaced_by else "look for another plugin"
        yield reference.diagnostic(Code.W0304, f"'{loaded.type}' from {candidate.origin} is deprecated", candidate, help=replacement)
    if plugin.stability is Stability.EXPERIMENTAL:
        yield reference.diagnostic(
            Code.W0309,
            f"'{loaded.type}' from {candidate.origin} is experimental",
            candidate,
            help=f"expect it to change; pin {candidate.distribution}",
        )
    text = output.text.rstrip()
    if output.text:
        quote = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}… ({len(text)} characters)"
        yield reference.diagnostic(
            Code.W0306,
            f"'{loaded.type}' from {candidate.origin} printed something while it was imported",
            candidate,
            help="report it to its author: a plugin should use logging",
            notes=(f"it printed:\n{quote}",),
        )
    if output.warnings:
        yield reference.diagnostic(
            Code.W0307, f"'{loaded.type}' from {candidate.origin} warned while it was imported", candidate, notes=_warned(output)
        )
    if loaded.load_seconds > SLOW_IMPORT_SECONDS:
        yield reference.diagnostic(
            Code.W0308,
            f"importing '{loaded.type}' from {candidate.origin} took {loaded.load_seconds:.1f} s",
            candidate,
            help="report it to its author: heavy modules should be imported when they are needed",
        )


def _warned(output: CapturedOutput) -> tuple[str, ...]:
    return tuple(f"{warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})" for warning in output.warnings)


@dataclass
class PluginCatalog:
    """Loads the installed and allowed plugin types; only built-in ones unless `imports_third_parties`."""

    candidates: Sequence[Candidate]
    policy: Policy = field(default_factory=Policy)
    lock: LockCheck = field(default_factory=LockCheck)
    imports_third_parties: bool = True
    _loadings: dict[Candidate, Loading] = field(default_factory=dict)
    _reported: set[Candidate] = field(default_factory=set)
    _unmet: dict[str, tuple[UnmetRequirement, ...]] = field(default_factory=dict)

    def get(self, reference: Reference) -> Loading:
        """Return the plugin for a reference. Mistakes of the plugin itself are reported once."""
        candidate = self._load(reference)
        if isinstance(candidate, Loading):
            return candidate
        loading = self._loadings[candidate]
        if candidate in self._reported:
            return Loading(loading.loaded)
        self._reported.add(candidate)
        return loading

    def peek(self, plugin_type: str) -> LoadedPlugin | None:
        """Return the plugin of a type, or None if it cannot be loaded."""
        candidate = self._load(Reference(plugin_type))
        return None if isinstance(candidate, Loading) else self._loadings[candidate].loaded

    def offers(self, plugin_type: str) -> bool:
        """Return True if a distribution offers the type, even if it cannot be loaded."""
        return bool(find(self.candidates, plugin_type))

    def types_that_produce(self, key: str) -> tuple[str, ...]:
        """Return the loadable types that produce a data key, sorted."""
        loaded = ((plugin_type, self.peek(plugin_type)) for plugin_type in sorted({candidate.type for candidate in self.candidates}))
        return tuple(
            name for name, plugin in loaded if plugin is not None and any(produced.name == key for produced in plugin.plugin.produces)
        )

    def _load(self, reference: Reference) -> Candidate | Loading:
        candidate = resolve(reference, self.candidates)
        if isinstance(candidate, Diagnostic):
            return Loading(None, (candidate,))
        forbidden = check_policy(reference, candidate, self.policy) or self.lock.fault(reference, candidate)
        if forbidden is not None:
            return Loading(None, (forbidden,))
        if not candidate.is_builtin and not self.imports_third_parties:
            return Loading(None)
        if candidate not in self._loadings:
            self._loadings[candidate] = load(candidate, reference, self._unmet_by(candidate), self.candidates)
        return candidate

    def _unmet_by(self, candidate: Candidate) -> tuple[UnmetRequirement, ...] | None:
        if candidate.is_builtin:
            return None
        if candidate.distribution not in self._unmet:
            self._unmet[candidate.distribution] = unmet_of(candidate.distribution)
        return self._unmet[candidate.distribution]


def policy_of(config: EndpointPickerConfig) -> Policy:
    """Return the policy of `pluginPolicy` in the document."""
    given = config.plugin_policy
    return Policy() if given is None else Policy(given.allow_distributions, given.deny_types)
