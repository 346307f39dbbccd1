"""The checks of `endpick doctor`: endpick's own and those of installed hook objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from endpick.api import hookimpl
from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.discovery import (
    API_MAJOR,
    ENTRY_POINT_GROUP_PREFIX,
    HOOKS_ENTRY_POINT_GROUP,
    VERBS_ENTRY_POINT_GROUP,
    Candidate,
    Installed,
    discover,
    discover_hook_objects,
    find_installed,
    for_endpick,
    import_place,
    unmet_requirements,
)
from endpick.host.environment import changed_files, listed
from endpick.host.hooks import HookFindings, load_hooks
from endpick.host.resolution import Reference, resolve, where

_OTHER_GROUPS = (HOOKS_ENTRY_POINT_GROUP, VERBS_ENTRY_POINT_GROUP)


@dataclass(frozen=True, slots=True)
class Environment:
    """The metadata of the installed distributions, plugin types and hook objects."""

    copies: tuple[Installed, ...]  # in import-path order
    counting: Mapping[str, Installed]  # the copies that Python uses
    candidates: tuple[Candidate, ...]
    hook_objects: tuple[Candidate, ...]

    @classmethod
    def at(cls, path: Sequence[str] | None = None) -> Environment:
        """Read the metadata on an import path, by default `sys.path`."""
        everything = find_installed(path)
        counting = for_endpick(everything)
        copies = tuple(copy for copy in everything if copy.key in counting)
        return cls(copies, counting, discover(path), discover_hook_objects(path))


class Findings(HookFindings):
    """The `DoctorReport` of one run of `endpick doctor`."""

    def error(self, message: str, help: str | None = None) -> None:  # noqa: A002 - see DoctorReport
        self.add(Code.E0811, message, help)

    def warn(self, message: str, help: str | None = None) -> None:  # noqa: A002 - see DoctorReport
        self.add(Code.W0802, message, help)


class Check:
    """A hook object that runs one of endpick's checks, listed in `CHECKS`."""

    def __init__(self, find: Callable[[Environment], Iterable[Diagnostic]], environment: Environment) -> None:
        self._find = find
        self._environment = environment

    @hookimpl
    def endpick_doctor(self, report: Findings) -> None:
        """Report the findings of the check."""
        report.diagnostics.extend(self._find(self._environment))


def examine(environment: Environment) -> tuple[Diagnostic, ...]:
    """Load the installed hook objects, run all checks, and return their findings."""
    hooks, faults = load_hooks(environment.hook_objects)
    for name, find in reversed(CHECKS.items()):
        hooks.register(Check(find, environment), name)
    report = Findings()
    failures = hooks.call("endpick_doctor", report=report)
    return (*report.diagnostics, *faults, *(failure.diagnostic(Code.E0705) for failure in failures))


def _shadowed_copies(environment: Environment) -> Iterator[Diagnostic]:
    for copy in sorted(environment.copies, key=lambda copy: copy.key):
        first = environment.counting[copy.key]
        used = f"{first.origin} at {first.path} is used"
        if copy.is_empty:
            message = f"an empty metadata directory was left behind at {copy.path}"
            yield Diagnostic(Code.W0302, message, help=f"remove it: `rm -r {copy.path}`", notes=(used,))
        elif os.path.realpath(copy.path) != os.path.realpath(first.path):
            same = copy.version == first.version
            modules = sorted({entry_point.module.partition(".")[0] for entry_point in first.entry_points})
            imported = (f"Python imports '{module}' from {import_place(module)}" for module in modules)
            shadows = f"{first.origin} shadows {copy.origin}, and the code may be of either"
            yield Diagnostic(
                Code.W0302,
                f"{first.name} has metadata in two places" if same else shadows,
                help=f"uninstall {first.name} until `pip show {first.name}` finds nothing, then install it once",
                notes=(used, f"{copy.origin} at {copy.path} is ignored", *imported),
            )


def _unknown_groups(environment: Environment) -> Iterator[Diagnostic]:
    for copy in environment.counting.values():
        for group in sorted({entry_point.group for entry_point in copy.entry_points}):
            number = group.removeprefix(ENTRY_POINT_GROUP_PREFIX)
            if group not in _OTHER_GROUPS and not (number != group and number.isdecimal()):
                yield Diagnostic(
                    Code.E0805,
                    f"{copy.origin} has entry points in the group '{group}', which endpick does not read",
                    help=f"its author may mean '{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}' or {' or '.join(map(repr, _OTHER_GROUPS))}",
                )


def _missing_requirements(environment: Environment) -> Iterator[Diagnostic]:
    for copy in environment.counting.values():
        unmet = unmet_requirements(copy.requires)
        if unmet:
            yield Diagnostic(
                Code.E0317,
                f"requirements of {copy.origin} are not met: {'; '.join(map(str, unmet))}",
                help=f"run `pip install {copy.name}=={copy.version}` to install what it needs",
            )


def _clashing_types(environment: Environment) -> Iterator[Diagnostic]:
    candidates = environment.candidates
    for plugin_type in sorted({candidate.type for candidate in candidates}):
        outcome = resolve(Reference(plugin_type), candidates)
        if not isinstance(outcome, Diagnostic):
            continue
        if outcome.code not in (Code.E0304, Code.E0315):
            yield outcome
            continue
        offers = [candidate for candidate in candidates if candidate.type == plugin_type and candidate.speaks_our_api]
        yield Diagnostic(
            Code.W0305,
            f"{len(offers)} distributions offer the type '{plugin_type}'",
            help="a configuration that uses it has to say which with `from:`",
            notes=tuple(where(offer) for offer in offers),
            plugin=PluginReference(plugin_type),
        )


def _missing_modules(environment: Environment) -> Iterator[Diagnostic]:
    for candidate in environment.candidates:
        if candidate.is_usable and not import_place(candidate.module):
            yield Reference(candidate.type).diagnostic(
                Code.E0303,
                f"the entry point of '{candidate.type}' in {candidate.origin} leads to {candidate.target}, and there is no such module",
                candidate,
                help=f"reinstall {candidate.distribution}; if that does not help, its author has to correct the entry point",
            )


def _changed_distributions(environment: Environment) -> Iterator[Diagnostic]:
    for copy in environment.counting.values():
        changed = () if copy.source_path else changed_files(copy.path)
        if changed:
            yield Diagnostic(
                Code.W0310,
                f"files of {copy.origin} were changed after it was installed: {listed(changed)}",
                help=f"find out who changed them; `pip install --force-reinstall {copy.name}=={copy.version}` brings them back",
            )


CHECKS: dict[str, Callable[[Environment], Iterable[Diagnostic]]] = {
    "shadowed-copies": _shadowed_copies,
    "unknown-groups": _unknown_groups,
    "missing-requirements": _missing_requirements,
    "clashing-types": _clashing_types,
    "missing-modules": _missing_modules,
    "changed-distributions": _changed_distributions,
}
