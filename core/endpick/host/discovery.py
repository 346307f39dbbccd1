"""Which plugin types are installed, and by whom: reads package metadata, imports nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path

from importlib_metadata import EntryPoint

from endpick.host.metadata import Metadata, claimants, effective, module_of, normalise, read_relevant
from endpick.installation import API_MAJOR, ENTRY_POINT_GROUP_PREFIX

TYPE_PATTERN = r"[a-z][a-z0-9]*([.-][a-z0-9]+)*"
"""Lower-case words joined by hyphens or dots: `queue-scorer`, `acme.queue-scorer`."""

_TYPE = re.compile(TYPE_PATTERN, re.ASCII)


def is_valid_type(name: str) -> bool:
    """Whether a plugin type may be called so."""
    return _TYPE.fullmatch(name) is not None


_GROUP = re.compile(re.escape(ENTRY_POINT_GROUP_PREFIX) + r"(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One distribution that offers a plugin type."""

    type: str
    """The entry point's name; perhaps not a valid type, see `is_valid`."""

    api_major: int
    """Suffix of the entry-point group."""

    distribution: str
    version: str
    target: str
    """`module:attribute`, as written by its author; not imported, perhaps wrong."""

    metadata_path: str
    editable: bool = False
    source_path: str = ""
    """Where an editable install has its source; empty for any other install."""

    copies: tuple[str, ...] = ()
    """Other metadata directories of the same distribution that offer the same target."""

    shadowed_by: str = ""
    """Metadata directory of another copy of the distribution that comes first on the import path; empty for what counts."""

    is_builtin: bool = False
    """Whether it comes with endpick itself: with the package that runs, not with any that has its name."""

    rivals: tuple[str, ...] = ()
    """Other metadata directories that bear the name of the distribution; none where it is known which one is meant."""

    @property
    def is_valid(self) -> bool:
        """Whether the type is well-formed; no configuration can use another."""
        return is_valid_type(self.type)

    @property
    def module(self) -> str:
        """The module of its target, as it is imported: without attribute and extras."""
        return module_of(self.target)

    @property
    def speaks_our_api(self) -> bool:
        """Whether it is written for the API major of this host."""
        return self.api_major == API_MAJOR

    @property
    def origin(self) -> str:
        """How messages name where it comes from: `acme-x 2.1`."""
        return f"{self.distribution} {self.version}".rstrip()


def discover(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """All candidates on the import path (`sys.path` unless given), sorted: the same environment always gives the same answer."""
    copies = read_relevant(ENTRY_POINT_GROUP_PREFIX, path)
    counting = effective(copies)
    identities = {key: Identity.of(copy, copies, path) for key, copy in counting.items()}
    found = [candidate for copy in copies if copy.key in counting for candidate in _offered(copy, counting[copy.key], identities[copy.key])]
    return tuple(sorted(_merged(same) for _, same in groupby(sorted(found, key=_identity), key=_identity)))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a distribution is, beyond its name."""

    is_host: bool
    rivals: tuple[str, ...]

    @classmethod
    def of(cls, counting: Metadata, copies: Iterable[Metadata], path: Sequence[str] | None) -> Identity:
        """Of the copy that counts, among everything that bears its name."""
        claiming = claimants(counting.name, copies, path)
        hosts = [copy.path for copy in claiming if copy.is_host]
        if len(hosts) == 1 and counting.is_host:
            return cls(True, ())
        others = sorted(copy.path for copy in claiming if not _same_installation(copy, counting))
        return cls(False, tuple(others) if counting.key == counting.stem_name else (*others, counting.path))


def _same_installation(copy: Metadata, counting: Metadata) -> bool:
    """Whether it is the same directory, or the `.egg-info` that a build left in the source directory of an editable install."""
    if os.path.realpath(copy.path) == os.path.realpath(counting.path):
        return True
    if not counting.source_path or not copy.path.endswith(".egg-info"):
        return False
    return Path(os.path.realpath(copy.path)).is_relative_to(os.path.realpath(counting.source_path))


def find(candidates: Iterable[Candidate], plugin_type: str) -> tuple[Candidate, ...]:
    """Those that offer `plugin_type` to this host and count; several only when distributions clash."""
    return tuple(
        candidate
        for candidate in candidates
        if candidate.type == plugin_type and candidate.is_valid and candidate.speaks_our_api and not candidate.shadowed_by
    )


def _offered(copy: Metadata, counting: Metadata, identity: Identity) -> list[Candidate]:
    matches = ((entry_point, _GROUP.fullmatch(entry_point.group)) for entry_point in copy.entry_points)
    return [candidate_of(entry_point, int(match[1]), copy, identity, counting) for entry_point, match in matches if match]


def candidate_of(
    entry_point: EntryPoint, api_major: int, copy: Metadata, identity: Identity, counting: Metadata | None = None
) -> Candidate:
    """What an entry point offers; `counting` is the copy of its distribution that counts, where that may be another one."""
    counting = counting or copy
    return Candidate(
        type=entry_point.name,
        api_major=api_major,
        distribution=copy.name or counting.name,
        version=copy.version or counting.version,
        target=entry_point.value,
        metadata_path=copy.path,
        editable=bool(copy.source_path),
        source_path=copy.source_path,
        shadowed_by="" if copy is counting else counting.path,
        is_builtin=copy is counting and identity.is_host,
        rivals=identity.rivals,
    )


def _identity(candidate: Candidate) -> tuple[str, int, str, str]:
    return candidate.type, candidate.api_major, normalise(candidate.distribution), candidate.target


def _merged(same: Iterable[Candidate]) -> Candidate:
    """One candidate for all copies: the one that counts, else the first, with the paths of the others."""
    counting, *others = sorted(same, key=lambda candidate: (bool(candidate.shadowed_by), candidate))
    return reduce(_add_copy, others, counting)


def _add_copy(candidate: Candidate, other: Candidate) -> Candidate:
    paths = {*candidate.copies, other.metadata_path} - {candidate.metadata_path}
    source_path = candidate.source_path or other.source_path
    return replace(candidate, copies=tuple(sorted(paths)), editable=bool(source_path), source_path=source_path)
