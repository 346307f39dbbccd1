"""RECORD: which files a distribution has brought, and their digests, as its installer wrote them down."""

from __future__ import annotations

import base64
import csv
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def read_record(metadata_path: str) -> Record:
    """The RECORD in a metadata directory."""
    try:
        text = (Path(metadata_path) / "RECORD").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Record()
    told: dict[str, set[str]] = {}
    for path, digest, *_ in (row for row in csv.reader(text.splitlines()) if len(row) >= 2):
        inside = posixpath.normpath(path)
        if not _DIFFERS_BY_INSTALLER.fullmatch(inside) and not inside.startswith(("..", "/")):
            told.setdefault(inside, set()).add(digest)
    lines = tuple(sorted(f"{path},{digest}" for path, digests in told.items() for digest in digests if digest))
    single = {path: next(iter(digests)) for path, digests in told.items() if len(digests) == 1}
    return Record(lines, {path: digest for path, digest in single.items() if digest} if lines else None)


def digest_of(content: bytes) -> str:
    """A digest as RECORD writes it."""
    return _digest("sha256", content)


def matches(content: bytes, digest: str) -> bool:
    """Whether `content` has the digest that a RECORD gives; never with an algorithm that can be deceived."""
    algorithm = digest.partition("=")[0]
    return algorithm in _ALGORITHMS and _digest(algorithm, content) == digest


def file_matches(file: str, digest: str) -> bool:
    """The same of a file, which may be gone."""
    try:
        content = Path(file).read_bytes()
    except OSError:
        return False
    return matches(content, digest)


def _digest(algorithm: str, content: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
    return f"{algorithm}={value}"
