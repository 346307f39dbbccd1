"""Modules that exist for the length of one test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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
