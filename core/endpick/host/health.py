"""Examines the installed plugins for `endpick doctor`; imports none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec

from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.discovery import Candidate, Installed, discover, discover_hook_objects, find_installed, for_endpick, unmet_requirements
from endpick.host.lock import changed_files, listed
from endpick.host.resolution import Reference, resolve, where
from endpick.installation import API_MAJOR, ENTRY_POINT_GROUP_PREFIX, HOOKS_ENTRY_POINT_GROUP


@dataclass(frozen=True, slots=True)
class Health:
    """An examined environment."""

    copies: tuple[Installed, ...]  # in import-path order
    candidates: tuple[Candidate, ...]
    hook_objects: tuple[Candidate, ...]
    diagnostics: tuple[Diagnostic, ...]


def examine(path: Sequence[str] | None = None) -> Health:
    """Examine the plugins on the import path (default: `sys.path`)."""
    everything = find_installed(path)
    counting = for_endpick(everything)
    copies = tuple(copy for copy in everything if copy.key in counting)
    candidates, hook_objects = discover(path), discover_hook_objects(path)
    findings = (
        *_copies_findings(copies, counting),
        *_group_findings(counting.values()),
        *_requirement_findings(counting.values()),
        *_type_findings(candidates),
        *_target_findings((*candidates, *hook_objects)),
        *_file_findings(counting.values()),
    )
    return Health(copies, candidates, hook_objects, findings)


def import_place(module: str) -> str:
    """The file of a module; empty if there is none. Imports no parent package."""
    top, *inner = module.split(".")
    spec: ModuleSpec | None = find_spec(top)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return ""
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None:
        return ""
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")


def _copies_findings(copies: Sequence[Installed], counting: Mapping[str, Installed]) -> Iterator[Diagnostic]:
    for copy in sorted(copies, key=lambda one: one.key):
        first = counting[copy.key]
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


def _group_findings(distributions: Iterable[Installed]) -> Iterator[Diagnostic]:
    for copy in distributions:
        for group in sorted({entry_point.group for entry_point in copy.entry_points}):
            number = group.removeprefix(ENTRY_POINT_GROUP_PREFIX)
            if group != HOOKS_ENTRY_POINT_GROUP and not (number != group and number.isdecimal()):
                yield Diagnostic(
                    Code.E0805,
                    f"{copy.origin} has entry points in the group '{group}', which endpick does not read",
                    help=f"its author may mean '{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}' or '{HOOKS_ENTRY_POINT_GROUP}'",
                )


def _requirement_findings(distributions: Iterable[Installed]) -> Iterator[Diagnostic]:
    for copy in distributions:
        unmet = unmet_requirements(copy.requires)
        if unmet:
            yield Diagnostic(
                Code.E0317,
                f"requirements of {copy.origin} are not met: {'; '.join(map(str, unmet))}",
                help=f"run `pip install {copy.name}=={copy.version}` to install what it needs",
            )


def _type_findings(candidates: Sequence[Candidate]) -> Iterator[Diagnostic]:
    for plugin_type in sorted({candidate.type for candidate in candidates}):
        outcome = resolve(Reference(plugin_type), candidates)
        if not isinstance(outcome, Diagnostic):
            continue
        if outcome.code not in (Code.E0304, Code.E0315):
            yield outcome
            continue
        offers = [one for one in candidates if one.type == plugin_type and one.speaks_our_api]
        yield Diagnostic(
            Code.W0305,
            f"{len(offers)} distributions offer the type '{plugin_type}'",
            help="a configuration that uses it has to say which with `from:`",
            notes=tuple(where(offer) for offer in offers),
            plugin=PluginReference(plugin_type),
        )


def _target_findings(candidates: Iterable[Candidate]) -> Iterator[Diagnostic]:
    for candidate in candidates:
        if candidate.is_usable and not import_place(candidate.module):
            yield Reference(candidate.type).diagnostic(
                Code.E0303,
                f"the entry point of '{candidate.type}' in {candidate.origin} leads to {candidate.target}, and there is no such module",
                candidate,
                help=f"reinstall {candidate.distribution}; if that does not help, its author has to correct the entry point",
            )


def _file_findings(distributions: Iterable[Installed]) -> Iterator[Diagnostic]:
    for copy in distributions:
        changed = () if copy.source_path else changed_files(copy.path)
        if changed:
            yield Diagnostic(
                Code.W0310,
                f"files of {copy.origin} were changed after it was installed: {listed(changed)}",
                help=f"find out who changed them; `pip install --force-reinstall {copy.name}=={copy.version}` brings them back",
            )
