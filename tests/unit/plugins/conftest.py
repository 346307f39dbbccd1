"""Candidates and plugin classes for tests of the host, without installing anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endpick.plugins.loader import LoadedPlugin
from plugin_classes import load_class, scorer_class


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """`on_path("module_name", source)`: makes a module importable for the length of a test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(module: str, source: str) -> Path:
        file = tmp_path / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    yield write
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


@pytest.fixture
def loaded_with() -> Callable[..., LoadedPlugin]:
    """`loaded_with(parameters=Model)`: a loaded scorer of type `acme.scorer` with these facts in its `meta`."""

    def make(**facts: object) -> LoadedPlugin:
        loading = load_class(scorer_class(**facts))
        assert loading.loaded is not None, loading.diagnostics
        return loading.loaded

    return make
