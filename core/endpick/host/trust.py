"""What the trust in plugins rests on in this environment: for `endpick doctor`."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from endpick.diagnostics import Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.lock import load_lock
from endpick.host.lock_check import LockCheck

LockState = Literal["matches", "differs", "unusable", "missing"]


@dataclass(frozen=True, slots=True)
class Trust:
    """Who else can decide which code runs."""

    safe_path: bool
    """Whether Python itself keeps the working directory off the import path (`-P`); endpick takes it off in any case, a little later."""

    python_path: tuple[str, ...]
    """What PYTHONPATH puts before everything that is installed. An empty entry of it means the working directory."""

    user_site: str
    """The user's own directory of packages; empty when Python does not look there."""

    lock: LockState
    """Of the lock file in the working directory."""


def examine_trust(lock_file: Path, candidates: Sequence[Candidate], hook_objects: Sequence[Candidate]) -> Trust:
    """Look at this process and at the lock file."""
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    return Trust(
        safe_path=bool(sys.flags.safe_path),
        python_path=()
        if sys.flags.ignore_environment or not given
        else tuple(place or str(Path.cwd()) for place in given.split(os.pathsep)),
        user_site=site.getusersitepackages() if site.ENABLE_USER_SITE else "",
        lock=_lock_state(lock_file, candidates, hook_objects),
    )


def _lock_state(lock_file: Path, candidates: Sequence[Candidate], hook_objects: Sequence[Candidate]) -> LockState:
    if not lock_file.exists():
        return "missing"
    lock = load_lock(lock_file)
    if isinstance(lock, Diagnostic):
        return "unusable"
    return "differs" if LockCheck(lock).differences(candidates, hook_objects) else "matches"
