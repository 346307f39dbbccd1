"""What tests of the import guard share: a distribution to guard, and foreign code that leaves a mark when it runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from conftest import record_line
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import discover
from endpick.host.guard import ImportGuard, UntrustedModuleError
from endpick.host.lock import lock_of
from endpick.host.lock_check import LockCheck
from endpick.host.resolution import Reference

RAN: list[str] = []
EVIL = "from guarding import RAN\nRAN.append(__name__)\n"
MODULES = {"guarded.__init__": "", "guarded.inner": "VALUE = 1\n", "guarded.deep.__init__": "", "guarded.deep.leaf": "VALUE = 2\n"}
TOP_LEVEL = ("guarded", "spread", "sibling", "lone")


def verdict(guard: ImportGuard, root: Path) -> Diagnostic | None:
    """Lock what is in `root` now, check it, and admit it to the guard."""
    (candidate,) = discover([str(root)])
    return LockCheck(lock_of([candidate]), guard).plugin(Reference(candidate.type), candidate)


def first_on_path(folder: Path) -> Path:
    """Make a folder the first place where Python looks."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return folder


def refusal(name: str) -> UntrustedModuleError:
    """The refusal to import a module."""
    importlib.invalidate_caches()
    with pytest.raises(UntrustedModuleError) as raised:
        importlib.import_module(name)
    return raised.value


def record_again(root: Path) -> None:
    """Write the RECORD that a new release would bring."""
    files = sorted((root / "guarded").rglob("*.py"))
    (root / "acme_guarded-1.0.dist-info" / "RECORD").write_text("".join(record_line(root, file) for file in files))
