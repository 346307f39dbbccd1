"""Compares installed distributions with a lock file, without importing them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, with_config

from endpick.diagnostics import Code, Diagnostic, Span
from endpick.host.discovery import Candidate, RecordedFile, files_of, normalise
from endpick.host.resolution import Reference

FILE_NAME = "endpick.lock.json"
_FORMAT: Literal[3] = 3
_SHOWN_FILES = 5

_WRITTEN_BY_INSTALLER = re.compile(r".*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json)|.*\.pyc|\.\..*")
"""RECORD entries that differ between installers or environments."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, order=True)
class LockedDistribution:
    """A distribution with the version and digest that a lock file pins."""

    distribution: str
    version: str
    digest: Annotated[str, Field(description="SHA-256 of its RECORD.")]


class LockDocument(BaseModel, extra="forbid"):
    """The content of a lock file, which `endpick lock` writes."""

    format: Literal[3]
    distributions: list[LockedDistribution]


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file. The source of an editable install is not pinned."""

    pins: tuple[LockedDistribution, ...] = ()

    def render(self) -> str:
        """Return the text of the lock file, with the distributions sorted."""
        return json.dumps(LockDocument(format=_FORMAT, distributions=sorted(self.pins)).model_dump(), indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class LockCheck:
    """Differences from a lock: message and notes by canonical name."""

    differences: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def fault(self, reference: Reference, candidate: Candidate) -> Diagnostic | None:
        """Return the reason why an import is forbidden; None if the distribution is as locked."""
        found = self.differences.get(normalise(candidate.distribution))
        if found is None:
            return None
        message, notes = found
        return reference.diagnostic(Code.E0308, message, candidate, annotation="differs from the lock file", help=_REPAIR, notes=notes)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return a diagnostic for each distribution that differs."""
        return tuple(Diagnostic(Code.E0308, message, help=_REPAIR, notes=notes) for message, notes in self.differences.values())


_REPAIR = "reinstall what was locked, or accept what is installed with `endpick lock`"


def lock_of(candidates: Iterable[Candidate]) -> Lock:
    """Return a lock that pins the distributions of these candidates."""
    return Lock(tuple(sorted({_pin(candidate) for candidate in candidates})))


def check_lock(lock: Lock, candidates: Iterable[Candidate]) -> LockCheck:
    """Compare installed distributions with a lock, and their files with RECORD."""
    pinned = {normalise(pin.distribution): pin for pin in lock.pins}
    installed = {normalise(candidate.distribution): candidate for candidate in candidates}
    found = {name: _difference(pinned.get(name), candidate) for name, candidate in installed.items()}
    missing = {
        name: (f"{pin.distribution} {pin.version} is locked and offers nothing to endpick here", ())
        for name, pin in pinned.items()
        if name not in installed
    }
    return LockCheck({name: difference for name, difference in sorted((found | missing).items()) if difference is not None})


def load_lock(path: Path) -> Lock | Diagnostic:
    """Read a lock file; returns a diagnostic if it is missing, damaged or of another format."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != _FORMAT:
            return _unusable(path, f"is of format {document['format']}, this endpick reads format {_FORMAT}")
        return Lock(tuple(LockedDistribution(**entry) for entry in document["distributions"]))
    except OSError as error:
        return Diagnostic(Code.E0321, f"the lock file {path} cannot be read: {error.strerror}", help="write one with `endpick lock`")
    except (ValueError, KeyError, TypeError) as error:
        return _unusable(path, f"is damaged: {type(error).__name__}: {error}")


def changed_files(metadata_path: str) -> tuple[str, ...]:
    """Return the files of a distribution that differ from its RECORD, sorted."""
    return tuple(sorted(file.name for file in _recorded(metadata_path) if not _is_intact(file)))


def listed(files: tuple[str, ...]) -> str:
    """Join up to five file names, and the number of the others, for a message."""
    more = len(files) - _SHOWN_FILES
    return ", ".join(files[:_SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")


def _pin(candidate: Candidate) -> LockedDistribution:
    lines = sorted(f"{file.name},{file.digest}\n" for file in _recorded(candidate.metadata_path))
    return LockedDistribution(candidate.distribution, candidate.version, f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}")


def _recorded(metadata_path: str) -> list[RecordedFile]:
    return [file for file in files_of(metadata_path) if not _WRITTEN_BY_INSTALLER.fullmatch(file.name)]


def _is_intact(file: RecordedFile) -> bool:
    try:
        digest = hashlib.new(file.algorithm, file.place.read_bytes()).digest()
    except FileNotFoundError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.digest


def _difference(pin: LockedDistribution | None, candidate: Candidate) -> tuple[str, tuple[str, ...]] | None:
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
