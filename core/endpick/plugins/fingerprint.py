"""What exactly is installed: a digest of a distribution's files, and whether they are still those that were installed."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from endpick.plugins.discovery import Candidate
from endpick.plugins.locating import source_files

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
