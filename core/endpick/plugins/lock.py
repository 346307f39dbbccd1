"""The lock file: which distribution, in which state, provides which plugin type and which hook object."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic, Span
from endpick.plugins.discovery import Candidate
from endpick.plugins.importing import describe
from endpick.plugins.metadata import normalise
from endpick.plugins.resolution import Reference


def locate(module: str) -> Path | None:
    """The file of a module, or the directory of a package without one; None when the import system would not find it.

    Parents are looked at, not imported, so a module that computes its own search path may be missed.
    """
    spec = _spec(module)
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        return Path(spec.origin)
    return next((Path(place) for place in spec.submodule_search_locations or ()), None)


def source_files(module: str) -> tuple[Path, ...]:
    """Every Python file of the top-level package (or module) that `module` belongs to, sorted; none when it is not found."""
    place = locate(module.partition(".")[0])
    if place is None:
        return ()
    if place.name != "__init__.py" and place.is_file():
        return (place,)
    return tuple(sorted((place.parent if place.is_file() else place).rglob("*.py")))


def _spec(module: str) -> ModuleSpec | None:
    top, *inner = module.split(".")
    spec = _top_level_spec(top)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name only: a dotted one would make a namespace package ask for its parent, which is not imported.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level_spec(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None


_DIFFERS_BY_INSTALLER = re.compile(r".*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json)|.*\.pyc|\.\./.*")


def fingerprint(candidate: Candidate) -> str:
    """A digest of what is installed: for a wheel of its RECORD, for an editable install of the source that would be imported."""
    content = hashlib.sha256()
    if candidate.editable or not (record := _record(candidate)):
        module = candidate.target.partition(":")[0].strip()
        for file in source_files(module):
            content.update(f"{file.name},{_file_digest(file)}\n".encode())
    else:
        for path, digest in sorted(record.items()):
            content.update(f"{path},{digest}\n".encode())
    return f"sha256:{content.hexdigest()}"


def altered_files(candidate: Candidate) -> tuple[str, ...]:
    """Installed files that are not what the distribution's RECORD says; empty for an editable install, which has no such record."""
    root = Path(candidate.metadata_path).parent
    return tuple(path for path, digest in sorted(_record(candidate).items()) if _file_digest(root / path) != digest)


def _record(candidate: Candidate) -> Mapping[str, str]:
    """Files and their digests as recorded at installation, without those that differ from one installer to the next."""
    try:
        text = (Path(candidate.metadata_path) / "RECORD").read_text(encoding="utf-8")
    except OSError:
        return {}
    rows = (row for row in csv.reader(text.splitlines()) if len(row) >= 2)
    return {path: digest for path, digest, *_ in rows if digest and not _DIFFERS_BY_INSTALLER.fullmatch(path)}


def _file_digest(path: Path) -> str:
    """The digest of a file as RECORD writes it; empty when the file is gone."""
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return ""
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


FILE_NAME = "endpick.lock.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, order=True)
class LockedPlugin:
    """One plugin type, or hook object, as it was when it was locked."""

    type: str
    """Of a hook object its name."""

    distribution: str
    version: str
    target: str
    digest: str
    """Of the installed files: for a wheel of its RECORD, for an editable install of the source itself."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file."""

    plugins: tuple[LockedPlugin, ...] = ()
    hooks: tuple[LockedPlugin, ...] = ()

    def render(self) -> str:
        """The lock file's text: the same plugins always give the same bytes."""
        sections = {"plugins": self.plugins, "hooks": self.hooks}
        pinned = {name: [asdict(one) for one in sorted(section)] for name, section in sections.items()}
        return json.dumps({"format": _FORMAT, **pinned}, indent=2) + "\n"


def lock_of(candidates: Iterable[Candidate], hook_objects: Iterable[Candidate] = ()) -> Lock:
    """Pin everything that this host could load. Types over which distributions clash are pinned once for each."""
    usable = (one for one in candidates if one.is_valid and one.speaks_our_api and not one.shadowed_by)
    return Lock(tuple(sorted(map(_locked, usable))), tuple(sorted(map(_locked, hook_objects))))


def read_lock(text: str, file: str) -> Lock | Diagnostic:
    """A lock file's content, or why it cannot be used."""
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            return _unusable(file, f"is of format {document['format']}, this endpick reads format {_FORMAT}")
        plugins, hooks = (tuple(LockedPlugin(**entry) for entry in document[section]) for section in ("plugins", "hooks"))
        return Lock(plugins, hooks)
    except (ValueError, KeyError, TypeError) as error:
        return _unusable(file, f"is damaged: {describe(error)}")


def load_lock(path: Path) -> Lock | Diagnostic:
    """The lock file at `path`, or why it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return Diagnostic(Code.E0321, f"the lock file {path} cannot be read: {reason}", help="write one with `endpick lock`")
    return read_lock(text, str(path))


def differences(lock: Lock, candidates: Sequence[Candidate], hook_objects: Sequence[Candidate] = ()) -> tuple[Diagnostic, ...]:
    """Everything locked that is not installed as it was locked."""
    usable = [one for one in candidates if one.is_valid and one.speaks_our_api and not one.shadowed_by]
    sections = ((lock.plugins, usable), (lock.hooks, hook_objects))
    found = (_difference(plugin, section, offers) for section, offers in sections for plugin in section)
    return tuple(fault for fault in found if fault is not None)


def check_lock(reference: Reference, candidate: Candidate, lock: Lock) -> Diagnostic | None:
    """How an installed plugin type differs from what was locked; None when it does not. Judged before any import."""
    if any(plugin.type == candidate.type for plugin in lock.plugins):
        return _check(reference, candidate, lock.plugins)
    # A type that a hook object offers has no entry point to pin; it is pinned with the distribution of its hook object.
    pinned = [replace(hook, type=candidate.type, target=candidate.target) for hook in lock.hooks if _same(hook, candidate)]
    return _check(reference, candidate, pinned)


def check_hook_lock(reference: Reference, candidate: Candidate, lock: Lock) -> Diagnostic | None:
    """The same for a hook object."""
    return _check(reference, candidate, lock.hooks)


def _check(reference: Reference, candidate: Candidate, locked_before: Sequence[LockedPlugin]) -> Diagnostic | None:
    of_type = [plugin for plugin in locked_before if plugin.type == candidate.type]
    same = [plugin for plugin in of_type if _same(plugin, candidate)]
    if not of_type:
        return _drift(reference, candidate, f"'{candidate.type}' from {candidate.origin} is not in the lock file")
    if not same:
        locked = ", ".join(f"{plugin.distribution} {plugin.version}" for plugin in of_type)
        return _drift(reference, candidate, f"'{candidate.type}' is locked to {locked}, but {candidate.origin} provides it")
    changes = _changes(same[0], _locked(candidate))
    if changes:
        return _drift(reference, candidate, f"'{candidate.type}' from {candidate.distribution} has changed since it was locked", changes)
    altered = altered_files(candidate)
    if altered:
        files = ", ".join(altered[:5]) + (f" and {len(altered) - 5} more" if len(altered) > 5 else "")
        return _drift(reference, candidate, f"files of {candidate.origin} were changed after it was installed: {files}")
    return None


def _difference(plugin: LockedPlugin, section: Sequence[LockedPlugin], installed: Sequence[Candidate]) -> Diagnostic | None:
    reference = Reference(plugin.type)
    offers = [one for one in installed if one.type == plugin.type and _same(plugin, one)]
    if offers:
        return _check(reference, offers[0], section)
    return reference.diagnostic(
        Code.E0308,
        f"'{plugin.type}' is locked to {plugin.distribution} {plugin.version}, which does not offer it here",
        help=f"run `pip install {plugin.distribution}=={plugin.version}`, or accept what is installed with `endpick lock`",
    )


def _same(plugin: LockedPlugin, candidate: Candidate) -> bool:
    return normalise(plugin.distribution) == normalise(candidate.distribution)


def _locked(candidate: Candidate) -> LockedPlugin:
    return LockedPlugin(candidate.type, candidate.distribution, candidate.version, candidate.target, fingerprint(candidate))


def _changes(then: LockedPlugin, now: LockedPlugin) -> tuple[str, ...]:
    changes = [
        f"the {field} was {before}, now it is {after}"
        for field, before, after in (("version", then.version, now.version), ("entry point", then.target, now.target))
        if before != after
    ]
    if then.digest != now.digest and not changes:
        changes.append(f"the version is still {now.version}, but other files are installed: the digest was {then.digest}, now {now.digest}")
    return tuple(changes)


def _drift(reference: Reference, candidate: Candidate, message: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return reference.diagnostic(
        Code.E0308,
        message,
        candidate,
        annotation="differs from the lock file",
        help="install what was locked, or accept what is installed with `endpick lock`",
        notes=notes,
    )


def _unusable(file: str, reason: str) -> Diagnostic:
    return Diagnostic(Code.E0321, f"the lock file {reason}", Span.start_of(file), help="write a new one with `endpick lock`")
