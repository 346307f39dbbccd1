"""Whether what a plugin's distribution requires is installed, in a version it can work with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from endpick.plugins.metadata import Metadata


def unmet_requirements(requires: Iterable[str]) -> tuple[str, ...]:
    """One sentence for each requirement that the environment does not meet; those of extras are not judged."""
    return tuple(_judge(requires))


def requirements_of(distribution: str) -> tuple[str, ...]:
    """The `Requires-Dist` lines of an installed distribution; none when it is not installed."""
    try:
        return tuple(importlib_metadata.requires(distribution) or ())
    except importlib_metadata.PackageNotFoundError:
        return ()


def unmet_by(metadata: Metadata) -> tuple[str, ...]:
    """`unmet_requirements` of one metadata directory."""
    return unmet_requirements(metadata.requires)


def _judge(requires: Iterable[str]) -> Iterator[str]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield f"'{text}' cannot be read as a requirement"
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _installed_version(requirement.name)
        if installed is None:
            yield f"{_plain(requirement)} is not installed"
        elif not _contains(requirement, installed):
            yield f"{_plain(requirement)} is needed, {requirement.name} {installed} is installed"


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _installed_version(name: str) -> str | None:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return None


def _contains(requirement: Requirement, version: str) -> bool:
    try:
        installed = Version(version)  # `contains` answers what it cannot read differently from release to release
    except InvalidVersion:
        return True
    return requirement.specifier.contains(installed, prereleases=True)
