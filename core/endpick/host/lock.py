"""The lock file: which distribution, in which state, provides which plugin type and which hook object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic, Span
from endpick.files import open_regular
from endpick.host.contents import contents_of, owner_of
from endpick.host.discovery import Candidate
from endpick.host.guard import owned_names
from endpick.host.importing import describe
from endpick.host.record import Contents

FILE_NAME = "endpick.lock.json"
_FORMAT = 2
_MOST_BYTES = 16 * 1024 * 1024
"""Of the file: a plugin type takes some hundred."""


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


@dataclass(frozen=True, slots=True, order=True)
class LockedOwner:
    """A distribution to whose modules entry points of other distributions lead."""

    distribution: str
    version: str
    digest: str
    """As of a plugin."""


@dataclass(frozen=True, slots=True, order=True)
class LockedModules:
    """Names under which everything belongs to one locked distribution: they stay its own when its metadata does not tell them any more."""

    distribution: str
    names: tuple[str, ...]
    """Sorted."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file."""

    plugins: tuple[LockedPlugin, ...] = ()
    hooks: tuple[LockedPlugin, ...] = ()
    owners: tuple[LockedOwner, ...] = ()
    modules: tuple[LockedModules, ...] = ()
    """Of the distributions of plugins and hook objects, and of those to which their entry points lead."""

    def render(self) -> str:
        """The lock file's text: the same plugins always give the same bytes."""
        sections: dict[str, Sequence[LockedPlugin | LockedOwner | LockedModules]] = {
            "plugins": sorted(self.plugins),
            "hooks": sorted(self.hooks),
            "owners": sorted(self.owners),
            "modules": sorted(self.modules),
        }
        pinned = {name: [asdict(one) for one in section] for name, section in sections.items()}
        return json.dumps({"format": _FORMAT, **pinned}, indent=2) + "\n"


def lock_of(candidates: Iterable[Candidate], hook_objects: Iterable[Candidate] = ()) -> Lock:
    """Pin everything that this host could load. Types over which distributions clash are pinned once for each."""
    usable = [one for one in candidates if one.is_valid and one.speaks_our_api and not one.shadowed_by]
    hooks = list(hook_objects)
    contents = {one.metadata_path: contents_of(one) for one in (*usable, *hooks)}
    owners = [owner for one in (*usable, *hooks) if (owner := _foreign_owner(one, contents[one.metadata_path])) is not None]
    return Lock(
        tuple(sorted(locked(one, contents[one.metadata_path]) for one in usable)),
        tuple(sorted(locked(one, contents[one.metadata_path]) for one in hooks)),
        tuple(sorted({LockedOwner(one.distribution, one.version, one.fingerprint) for one in owners})),
        tuple(sorted({_modules_of(one) for one in (*contents.values(), *owners)})),
    )


def locked(candidate: Candidate, contents: Contents) -> LockedPlugin:
    """What the lock file says of a plugin type, or hook object, that is installed so."""
    return LockedPlugin(candidate.type, candidate.distribution, candidate.version, candidate.target, contents.fingerprint)


def _modules_of(contents: Contents) -> LockedModules:
    return LockedModules(contents.distribution, tuple(sorted(owned_names(contents.to_guard().modules))))


def _foreign_owner(candidate: Candidate, contents: Contents) -> Contents | None:
    return None if candidate.module in contents.modules else owner_of(candidate.module)


def read_lock(text: str, file: str) -> Lock | Diagnostic:
    """A lock file's content, or why it cannot be used."""
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            return _unusable(file, f"is of format {document['format']}, this endpick reads format {_FORMAT}")
        plugins, hooks = (tuple(LockedPlugin(**_texts(entry)) for entry in document[section]) for section in ("plugins", "hooks"))
        owners = tuple(LockedOwner(**_texts(entry)) for entry in document["owners"])
        return Lock(plugins, hooks, owners, tuple(_named(entry) for entry in document.get("modules", ())))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return _unusable(file, f"is damaged: {describe(error)}")


def load_lock(path: Path) -> Lock | Diagnostic:
    """The lock file at `path`, or why it cannot be used."""
    try:
        with open_regular(path) as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return Diagnostic(Code.E0321, f"the lock file {path} cannot be read: {reason}", help="write one with `endpick lock`")
    if len(raw) > _MOST_BYTES:
        return _unusable(str(path), f"is longer than {_MOST_BYTES // 2**20} MiB")
    return read_lock(text, str(path))


def _texts(entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise TypeError("an entry is no mapping of text to text")
    return entry


def _named(entry: object) -> LockedModules:
    if not isinstance(entry, dict) or not isinstance(entry["distribution"], str) or not isinstance(entry["names"], list):
        raise TypeError("modules are no mapping of a distribution and a list of names")
    if not all(isinstance(name, str) for name in entry["names"]):
        raise TypeError("the name of a module is no text")
    return LockedModules(entry["distribution"], tuple(entry["names"]))


def _unusable(file: str, reason: str) -> Diagnostic:
    return Diagnostic(Code.E0321, f"the lock file {reason}", Span.start_of(file), help="write a new one with `endpick lock`")
