"""Reads installed distributions without importing them: the lock file of `endpick lock`, and the findings of `endpick doctor`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic, PluginReference, Span
from endpick.host.discovery import (
    API_MAJOR,
    ENTRY_POINT_GROUP_PREFIX,
    HOOKS_ENTRY_POINT_GROUP,
    VERBS_ENTRY_POINT_GROUP,
    Candidate,
    Installed,
    RecordedFile,
    discover,
    discover_hook_objects,
    files_of,
    find_installed,
    for_endpick,
    import_place,
    normalise,
    unmet_requirements,
)
from endpick.host.resolution import Reference, resolve, where

FILE_NAME = "endpick.lock.json"
_FORMAT = 3
_SHOWN_FILES = 5
_OTHER_GROUPS = (HOOKS_ENTRY_POINT_GROUP, VERBS_ENTRY_POINT_GROUP)

_WRITTEN_BY_INSTALLER = re.compile(r".*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json)|.*\.pyc|\.\..*")
"""RECORD entries that differ between installers or environments."""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """A locked distribution; `digest` is the SHA-256 of RECORD. The source of an editable install is not pinned."""

    distribution: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file."""

    pins: tuple[Pin, ...] = ()

    def render(self) -> str:
        """The text of the lock file."""
        return json.dumps({"format": _FORMAT, "distributions": [asdict(pin) for pin in sorted(self.pins)]}, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class LockCheck:
    """Differences from a lock: message and notes by canonical name."""

    differences: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def fault(self, reference: Reference, candidate: Candidate) -> Diagnostic | None:
        """Why an import is forbidden; None if it is as locked."""
        found = self.differences.get(normalise(candidate.distribution))
        if found is None:
            return None
        message, notes = found
        return reference.diagnostic(Code.E0308, message, candidate, annotation="differs from the lock file", help=_REPAIR, notes=notes)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One for each distribution that differs."""
        return tuple(Diagnostic(Code.E0308, message, help=_REPAIR, notes=notes) for message, notes in self.differences.values())


_REPAIR = "reinstall what was locked, or accept what is installed with `endpick lock`"


def lock_of(candidates: Iterable[Candidate]) -> Lock:
    """Pin the distributions of these candidates."""
    return Lock(tuple(sorted({_pin(one) for one in candidates})))


def check_lock(lock: Lock, candidates: Iterable[Candidate]) -> LockCheck:
    """Compare distributions with the lock, and their files with RECORD."""
    pinned = {normalise(pin.distribution): pin for pin in lock.pins}
    installed = {normalise(one.distribution): one for one in candidates}
    found = {name: _difference(pinned.get(name), one) for name, one in installed.items()}
    missing = {
        name: (f"{pin.distribution} {pin.version} is locked and offers nothing to endpick here", ())
        for name, pin in pinned.items()
        if name not in installed
    }
    return LockCheck({name: difference for name, difference in sorted((found | missing).items()) if difference is not None})


def load_lock(path: Path) -> Lock | Diagnostic:
    """Read a lock file."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != _FORMAT:
            return _unusable(path, f"is of format {document['format']}, this endpick reads format {_FORMAT}")
        return Lock(tuple(Pin(**entry) for entry in document["distributions"]))
    except OSError as error:
        return Diagnostic(Code.E0321, f"the lock file {path} cannot be read: {error.strerror}", help="write one with `endpick lock`")
    except (ValueError, KeyError, TypeError) as error:
        return _unusable(path, f"is damaged: {type(error).__name__}: {error}")


def changed_files(metadata_path: str) -> tuple[str, ...]:
    """Files that differ from RECORD, sorted."""
    return tuple(sorted(file.name for file in _recorded(metadata_path) if not _is_intact(file)))


def listed(files: tuple[str, ...]) -> str:
    """Up to five file names, and the number of others."""
    more = len(files) - _SHOWN_FILES
    return ", ".join(files[:_SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")


def _pin(candidate: Candidate) -> Pin:
    lines = sorted(f"{file.name},{file.digest}\n" for file in _recorded(candidate.metadata_path))
    return Pin(candidate.distribution, candidate.version, f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}")


def _recorded(metadata_path: str) -> list[RecordedFile]:
    return [file for file in files_of(metadata_path) if not _WRITTEN_BY_INSTALLER.fullmatch(file.name)]


def _is_intact(file: RecordedFile) -> bool:
    try:
        digest = hashlib.new(file.algorithm, file.place.read_bytes()).digest()
    except FileNotFoundError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.digest


def _difference(pin: Pin | None, candidate: Candidate) -> tuple[str, tuple[str, ...]] | None:
    if pin is None:
        return f"{candidate.origin} is not in the lock file", ()
    now = _pin(candidate)
    if now.version != pin.version:
        return f"{candidate.distribution} has changed since it was locked", (f"the version was {pin.version}, now it is {now.version}",)
    if now.digest != pin.digest:
        note = f"the version is still {now.version}, but other files are installed: the digest was {pin.digest}, now {now.digest}"
        return f"{candidate.distribution} has changed since it was locked", (note,)
    changed = () if candidate.source_path else changed_files(candidate.metadata_path)
    return (f"files of {candidate.origin} were changed after it was installed: {listed(changed)}", ()) if changed else None


def _unusable(path: Path, reason: str) -> Diagnostic:
    return Diagnostic(Code.E0321, f"the lock file {reason}", Span.start_of(str(path)), help="write a new one with `endpick lock`")


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
            if group not in _OTHER_GROUPS and not (number != group and number.isdecimal()):
                yield Diagnostic(
                    Code.E0805,
                    f"{copy.origin} has entry points in the group '{group}', which endpick does not read",
                    help=f"its author may mean '{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}' or {' or '.join(map(repr, _OTHER_GROUPS))}",
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
