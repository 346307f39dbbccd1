"""Installs the plugins that a page shows, as a distribution with the page's entry points and requirements."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docs.pages import blocks

DISTRIBUTION = "docs-page"
GROUP = "endpick.plugins.v1"


def modules_of(page: Path) -> dict[str, str]:
    """The modules in the root of the reader's project: name to source."""
    files = [block for block in blocks(page) if block.language == "python" and block.file and "/" not in block.file]
    return {block.file.removesuffix(".py"): block.text for block in files}


def entry_points_of(page: Path) -> dict[str, str]:
    """Plugin type to target, for entry points into the page's own modules."""
    modules = modules_of(page)
    groups = (project.get("entry-points", {}).get(GROUP, {}) for project in _projects(page))
    return {name: target for group in groups for name, target in group.items() if target.partition(":")[0] in modules}


def distribution_of(page: Path, make_distribution: Callable[..., Path]) -> Path:
    """The directory of the distribution."""
    requires = [requirement for project in _projects(page) for requirement in project.get("dependencies", ())]
    return make_distribution(DISTRIBUTION, entry_points_of(page), modules=modules_of(page), requires=requires)


def _projects(page: Path) -> Iterator[dict[str, Any]]:
    return (tomllib.loads(block.text).get("project", {}) for block in blocks(page) if block.language == "toml")
