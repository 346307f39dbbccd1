"""Which metadata directory is that of the endpick that runs: told by where the code is, because a name proves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import endpick
from endpick.host.record import read_record

_PACKAGE_FILE = "endpick/__init__.py"


def is_running_host(metadata_path: str, source_path: str) -> bool:
    """Whether a metadata directory that claims to be endpick's belongs to the package that was imported.

    It does when the package lies in its source directory, for an editable install, or beside it, for any other; and a RECORD has to
    list it.
    """
    running = os.path.realpath(endpick.__file__)
    if source_path:
        return Path(running).is_relative_to(os.path.realpath(source_path))
    if os.path.realpath(Path(metadata_path).parent / _PACKAGE_FILE) != running:
        return False
    recorded = read_record(metadata_path).digests
    return recorded is None or _PACKAGE_FILE in recorded
