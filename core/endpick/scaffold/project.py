"""What a new project and everything in it will be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("filter", "scorer", "picker", "profile-handler", "data-source", "data-producer")
"""Kinds of plugin the template can make; a data source comes with a data collector."""


@dataclass(frozen=True, slots=True)
class Project:
    """The names that follow from a plugin type and a kind; derived in `cookiecutter.json`, so that the template works by itself as well.

    Attributes:
        types: Plugin types it will offer, the one asked for first.
        kind: One of `KINDS`.
        distribution: What pip installs; also the name of the folder.
        package: What Python imports.
        module: Module of the package that holds the plugin.
        stem: The last part of the type without its kind: what classes are named after.
        definitions: Names of the classes and constants that the package defines.
    """

    types: tuple[str, ...]
    kind: str
    distribution: str
    package: str
    module: str
    stem: str
    definitions: tuple[str, ...]

    @property
    def plugin_type(self) -> str:
        """The type that was asked for."""
        return self.types[0]


def project_of(names: Mapping[str, str]) -> Project:
    """Read a project from the variables of the template."""
    kind = names["kind"]
    collects = kind == "data-source"
    has_key = names["__keys_file"] != ""
    return Project(
        types=(names["plugin_type"], *([names["__collector_type"]] if collects else [])),
        kind=kind,
        distribution=names["distribution"],
        package=names["__package"],
        module=names["__module"],
        stem=names["__stem"],
        definitions=(
            names["__class"],
            names["__parameters"],
            *((names["__collector"], names["__payload"]) if collects else ()),
            *((names["__key"],) if has_key else ()),
        ),
    )
