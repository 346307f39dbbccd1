"""Modules that exist for the length of one test."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endpick.host.guard import ImportGuard
from guarding import MODULES, RAN, TOP_LEVEL, verdict


@pytest.fixture(autouse=True)
def forgotten_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test imported from temporary directories, so that the next test imports its own."""
    yield
    temporary = str(tmp_path_factory.getbasetemp().parent)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(temporary):
            del sys.modules[name]


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """`on_path("module_name", source)`: makes a module importable for the length of a test."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(module: str, source: str) -> Path:
        file = tmp_path / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    return write


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportGuard]:
    """A guard of its own; when the test is over no foreign code may have run."""
    RAN.clear()
    monkeypatch.setattr(sys, "path", list(sys.path))
    # A plan with a lock that was made in this process leaves its guard, and two would ask each other.
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, ImportGuard)])
    guard = ImportGuard()
    yield guard
    guard.withdraw()
    for name in [name for name in sys.modules if name.partition(".")[0] in TOP_LEVEL]:
        del sys.modules[name]
    importlib.invalidate_caches()
    assert RAN == []


@pytest.fixture
def guarded(make_distribution: Callable[..., Path], guard: ImportGuard, tmp_path: Path) -> Callable[..., Path]:
    """`guarded(modules, target)`: installs, locks and admits a distribution; gives the directory."""

    def install(modules: dict[str, str] = MODULES, target: str = "guarded:C") -> Path:
        root = make_distribution("acme-guarded", {"acme.guarded": target}, modules=modules, root=tmp_path / "site")
        sys.path.insert(0, str(root))
        importlib.invalidate_caches()
        assert verdict(guard, root) is None
        return root

    return install


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """As in a terminal, wherever the tests run: a shell starts what it runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
