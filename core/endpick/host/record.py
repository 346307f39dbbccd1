"""What a distribution has brought: its files and their digests, as its installer wrote them down in RECORD or as they are now."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from endpick.files import open_regular

_DIFFERS_BY_INSTALLER = re.compile(r".*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json)|.*\.pyc")
_ALGORITHMS = ("sha256", "sha384", "sha512")
"""Those that the packaging standard calls strong enough."""


@dataclass(frozen=True, slots=True)
class Record:
    """A RECORD without what differs from one installer to the next, and without paths that lead out of the directory it is about."""

    lines: tuple[str, ...] = ()
    """`path,digest`, sorted: equal for equal contents."""

    digests: Mapping[str, str] | None = None
    """By relative path; without files that it gives no digest, or more than one. None when there is no RECORD that tells digests."""

    paths: tuple[str, ...] = ()
    """All relative paths that it names, sorted: also of files that may not be loaded, because it does not give them one digest."""


def read_record(metadata_path: str) -> Record:
    """The RECORD in a metadata directory."""
    try:
        with open_regular(Path(metadata_path) / "RECORD") as file:
            rows = [row for row in csv.reader(file.read().decode().splitlines()) if len(row) >= 2]
    except (OSError, UnicodeDecodeError, csv.Error):
        return Record()
    told: dict[str, set[str]] = {}
    for path, digest, *_ in rows:
        inside = posixpath.normpath(path)
        if not _DIFFERS_BY_INSTALLER.fullmatch(inside) and not inside.startswith(("..", "/")):
            told.setdefault(inside, set()).add(digest)
    # No digest beside one is a contradiction, which shows. No digest at all does not: some installers list files of their own so.
    lines = tuple(sorted(f"{path},{digest}" for path, digests in told.items() for digest in digests if digest or len(digests) > 1))
    single = {path: next(iter(digests)) for path, digests in told.items() if len(digests) == 1}
    return Record(lines, {path: digest for path, digest in single.items() if digest} if lines else None, tuple(sorted(told)))


def digest_of(content: bytes) -> str:
    """A digest as RECORD writes it."""
    return _digest("sha256", content)


def matches(content: bytes, digest: str) -> bool:
    """Whether `content` has the digest that a RECORD gives; never with an algorithm that can be deceived."""
    algorithm = digest.partition("=")[0]
    return algorithm in _ALGORITHMS and _digest(algorithm, content) == digest


def file_matches(file: str, digest: str) -> bool:
    """The same of a file, which may be gone."""
    algorithm = digest.partition("=")[0]
    try:
        with open_regular(file) as content:
            return algorithm in _ALGORITHMS and _written(algorithm, hashlib.file_digest(content, algorithm).digest()) == digest
    except (OSError, ValueError):  # the latter for a name with a NUL
        return False


def _digest(algorithm: str, content: bytes) -> str:
    return _written(algorithm, hashlib.new(algorithm, content).digest())


def _written(algorithm: str, digest: bytes) -> str:
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of one distribution, as its RECORD or, for an editable install, its source directory has them now."""

    distribution: str
    version: str
    root: str
    """The directory that its modules are imported from; for an editable install the project's."""

    fingerprint: str
    digests: Mapping[str, str] = field(repr=False)
    """By absolute path."""

    modules: Mapping[str, str] = field(repr=False)
    """The file of each module; also of those that RECORD gives no digest, which may not be loaded."""

    recorded: bool = True
    """Whether a RECORD tells the digests; False when they were just made from the files."""

    plugins_in: frozenset[str] = frozenset()
    """Of endpick itself the top-level packages with plugins, because the rest of it runs already; empty for any other distribution."""

    @property
    def origin(self) -> str:
        """How messages name it: `acme-x 2.1`."""
        return f"{self.distribution} {self.version}".rstrip()

    def altered(self) -> tuple[str, ...]:
        """Files that are not what the RECORD says, relative to the root, sorted."""
        if not self.recorded:
            return ()
        return tuple(sorted(os.path.relpath(file, self.root) for file, digest in self.digests.items() if not file_matches(file, digest)))

    def to_guard(self) -> Contents:
        """What may be imported of it from now on."""
        if not self.plugins_in:
            return self
        digests = {file: digest for file, digest in self.digests.items() if _top_level(os.path.relpath(file, self.root)) in self.plugins_in}
        return replace(self, digests=digests, modules={name: file for name, file in self.modules.items() if file in digests})

    def distrusted(self) -> Contents:
        """The same modules, none of which may be imported."""
        return replace(self.to_guard(), digests={})

    def brings(self, file: Path) -> bool:
        """Whether a file is one of its own, whatever it holds now."""
        return str(file) in self.digests or any(Path(own).name == file.name and _same(Path(own), file) for own in self.digests)


def _top_level(path: str) -> str:
    return path.partition(os.sep)[0].partition(".")[0]


def _same(one: Path, other: Path) -> bool:
    """Whether both name the same entry of the same directory, by whichever path."""
    return one.parent.resolve() / one.name == other.parent.resolve() / other.name
