"""What is wrong with the installed plugins, as far as metadata tells: for `endpick doctor`, which imports nothing either."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.contents import contents_of, listed, owner_of
from endpick.host.discovery import Candidate, discover
from endpick.host.guard import REPAIR
from endpick.host.hook_objects import discover_hook_objects
from endpick.host.locating import locate
from endpick.host.metadata import Metadata, effective, read_relevant
from endpick.host.record import Contents
from endpick.host.requirements import unmet_requirements
from endpick.host.resolution import Reference, resolve, where
from endpick.installation import API_MAJOR, ENTRY_POINT_GROUP_PREFIX, HOOKS_ENTRY_POINT_GROUP, OUR_GROUPS


@dataclass(frozen=True, slots=True)
class Health:
    """An environment, examined."""

    copies: tuple[Metadata, ...]
    """Every metadata directory of distributions that offer something to endpick, in the order of the import path."""

    candidates: tuple[Candidate, ...]
    hook_objects: tuple[Candidate, ...]
    diagnostics: tuple[Diagnostic, ...]


def examine(path: Sequence[str] | None = None) -> Health:
    """Look at everything installed for endpick on the import path (`sys.path` unless given)."""
    copies = read_relevant(OUR_GROUPS, path)
    candidates, hook_objects = discover(path), discover_hook_objects(path)
    findings = (
        *_copies_findings(copies),
        *_group_findings(copies),
        *_unreadable_findings(copies),
        *_requirement_findings(copies),
        *_type_findings(candidates),
        *_target_findings((*candidates, *hook_objects)),
        *_file_findings((*candidates, *hook_objects)),
    )
    return Health(copies, candidates, hook_objects, findings)


def import_place(candidate: Candidate) -> str:
    """Where Python would import the candidate's module from; empty when it would not find it."""
    place = locate(candidate.module)
    return "" if place is None else str(place)


def _copies_findings(copies: Sequence[Metadata]) -> Iterator[Diagnostic]:
    counting = effective(copies)
    for key, same in groupby(sorted(copies, key=lambda copy: copy.key), key=lambda copy: copy.key):
        first = counting.get(key)
        others = [copy for copy in same if copy is not first]
        for copy in others:
            if copy.is_empty:
                yield _leftover(copy, first)
            elif first is not None and os.path.realpath(copy.path) != os.path.realpath(first.path):
                yield _shadowed(copy, first)


def _leftover(copy: Metadata, first: Metadata | None) -> Diagnostic:
    return Diagnostic(
        Code.W0302,
        f"an empty metadata directory was left behind at {copy.path}",
        help=f"remove it: `rm -r {copy.path}`",
        notes=() if first is None else (f"{first.name} {first.version} at {first.path} is what counts",),
    )


def _shadowed(copy: Metadata, first: Metadata) -> Diagnostic:
    modules = sorted({entry_point.value.partition(":")[0].strip() for entry_point in first.entry_points if _is_ours(entry_point.group)})
    imported = [f"Python imports '{module}' from {locate(module)}" for module in modules[:1]]
    same = copy.version == first.version
    return Diagnostic(
        Code.W0302,
        f"{first.name} has metadata in two places"
        if same
        else f"{first.name} {first.version} shadows {copy.name} {copy.version}, and the code may be of either",
        help=f"uninstall {first.name} until `pip show {first.name}` finds nothing, then install it once",
        notes=(f"{first.name} {first.version} at {first.path} counts", f"{copy.name} {copy.version} at {copy.path} is ignored", *imported),
    )


def _is_ours(group: str) -> bool:
    return group.startswith(OUR_GROUPS)


def _group_findings(copies: Sequence[Metadata]) -> Iterator[Diagnostic]:
    for copy in effective(copies).values():
        for group in sorted({entry_point.group for entry_point in copy.entry_points if _is_ours(entry_point.group)}):
            number = group.removeprefix(ENTRY_POINT_GROUP_PREFIX)
            if group != HOOKS_ENTRY_POINT_GROUP and not (number != group and number.isdecimal()):
                yield Diagnostic(
                    Code.E0805,
                    f"{copy.name} {copy.version} has entry points in the group '{group}', which endpick does not read",
                    help=f"its author may mean '{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}' or '{HOOKS_ENTRY_POINT_GROUP}'",
                )


def _unreadable_findings(copies: Sequence[Metadata]) -> Iterator[Diagnostic]:
    for copy in effective(copies).values():
        if copy.trouble:
            yield Diagnostic(
                Code.E0805,
                f"the entry points of {copy.name} {copy.version} cannot be read, so it offers nothing: {copy.trouble}",
                help=f"reinstall {copy.name}; if that does not help, its author has to correct its entry points",
                notes=(f"they are written in {copy.path}",),
            )


def _requirement_findings(copies: Sequence[Metadata]) -> Iterator[Diagnostic]:
    for copy in effective(copies).values():
        unmet = unmet_requirements(copy.requires)
        if unmet:
            yield Diagnostic(
                Code.E0317,
                f"requirements of {copy.name} {copy.version} are not met: {'; '.join(map(str, unmet))}",
                help=f"run `pip install {copy.name}=={copy.version}` to install what it needs",
            )


def _type_findings(candidates: Sequence[Candidate]) -> Iterator[Diagnostic]:
    for plugin_type in sorted({candidate.type for candidate in candidates}):
        outcome = resolve(Reference(plugin_type), candidates)
        if isinstance(outcome, Diagnostic):
            clash = outcome.code in (Code.E0304, Code.E0315)
            yield _unused_clash(plugin_type, candidates) if clash else outcome


def _unused_clash(plugin_type: str, candidates: Sequence[Candidate]) -> Diagnostic:
    offers = [one for one in candidates if one.type == plugin_type and one.speaks_our_api and not one.shadowed_by]
    return Diagnostic(
        Code.W0305,
        f"{len(offers)} distributions offer the type '{plugin_type}'",
        help="a configuration that uses it has to say which with `from:`",
        notes=tuple(where(offer) for offer in offers),
        plugin=PluginReference(plugin_type),
    )


def _target_findings(candidates: Iterable[Candidate]) -> Iterator[Diagnostic]:
    for candidate in candidates:
        if not candidate.shadowed_by and candidate.is_valid and candidate.speaks_our_api and not import_place(candidate):
            yield Reference(candidate.type).diagnostic(
                Code.E0303,
                f"the entry point of '{candidate.type}' in {candidate.origin} leads to {candidate.target}, and there is no such module",
                candidate,
                help=f"reinstall {candidate.distribution}; if that does not help, its author has to correct the entry point",
            )


def _file_findings(candidates: Iterable[Candidate]) -> Iterator[Diagnostic]:
    """Installed files that were changed, and entry points that lead out of their distribution; each file is told once."""
    usable = [one for one in candidates if not one.shadowed_by and one.is_valid and one.speaks_our_api]
    found: dict[str, Contents] = {}
    told: set[tuple[str, Path]] = set()
    for candidate in usable:
        if candidate.metadata_path not in found:
            contents = found[candidate.metadata_path] = contents_of(candidate)
            altered = contents.altered()
            if altered:
                yield _altered(contents, altered)
        place = locate(candidate.module)
        if place is None or found[candidate.metadata_path].brings(place) or (candidate.metadata_path, place) in told:
            continue
        told.add((candidate.metadata_path, place))
        yield _foreign(candidate, place)


def _altered(contents: Contents, files: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        Code.W0310,
        f"files of {contents.origin} were changed after it was installed: {listed(files)}",
        help=f"find out who changed them; `pip install --force-reinstall {contents.distribution}=={contents.version}` brings them back",
    )


def _foreign(candidate: Candidate, place: Path) -> Diagnostic:
    owner = owner_of(candidate.module)
    whose = "no installed distribution brings" if owner is None else f"{owner.origin} brings"
    return Reference(candidate.type).diagnostic(
        Code.W0311,
        f"'{candidate.type}' of {candidate.origin} leads to {place}, which {whose}",
        candidate,
        help=REPAIR if owner is None else f"nothing, where {candidate.distribution} means to offer what is in {owner.distribution}",
    )
