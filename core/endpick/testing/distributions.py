"""Writes distributions as pip would have installed them: metadata, entry points, modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from endpick.versions import API_MAJOR, ENTRY_POINT_GROUP_PREFIX

MARK = "endpick-testing"
"""A file of this name in the metadata says that a test has made the distribution."""


def write_distribution(directory: Path, name: str, version: str, entry_points: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Write a distribution into a directory that is to be put on the import path.

    Args:
        directory: Made if it is not there.
        name: Of the distribution.
        version: Of the distribution.
        entry_points: Target (`module:Class`) of each plugin type.
        modules: Source of each module, by dotted name.

    Raises:
        FileExistsError: the directory holds this version of the distribution already.
    """
    for module, source in modules.items():
        file = directory / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    metadata = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{plugin_type} = {target}" for plugin_type, target in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}]", *lines, ""]))
    (metadata / MARK).touch()
