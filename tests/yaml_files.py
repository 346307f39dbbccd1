"""Fixtures in YAML, read by libyaml: every process that runs tests reads them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def load(path: Path) -> Any:
    """The document in a file."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
