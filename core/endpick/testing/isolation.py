"""Hides the plugins that happen to be installed where tests run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import importlib_metadata
import pytest

from endpick.plugins import metadata
from endpick.plugins.metadata import normalise
from endpick.testing.distributions import MARK
from endpick.versions import HOST_DISTRIBUTION


def hide_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, discovery sees endpick itself and distributions made by tests."""
    find = metadata._distributions

    def visible(path: Sequence[str] | None) -> list[importlib_metadata.Distribution]:
        return [one for one in find(path) if normalise(one.name or "") == HOST_DISTRIBUTION or (Path(str(one)) / MARK).exists()]

    monkeypatch.setattr(metadata, "_distributions", visible)
