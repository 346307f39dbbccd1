"""Golden vectors: cases that are data."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

_FOLDER = Path(__file__).parents[2] / "fixtures" / "vectors"


def vectors(topic: str):
    """Parametrise a test with the cases of one file; each has a sentence under `case`."""
    cases = YAML(typ="safe").load((_FOLDER / f"{topic}.yaml").read_text())
    assert cases
    return pytest.mark.parametrize("vector", [pytest.param(case, id=case["case"]) for case in cases])
