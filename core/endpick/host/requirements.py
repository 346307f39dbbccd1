"""Compares the requirements of a distribution with what is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from endpick.host.discovery import normalise


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement that the environment does not meet.

    Attributes:
        distribution: Canonical name of the required distribution.
        requirement: Name and versions, without marker and extras.
        installed: The installed version; empty when there is none.
    """

    distribution: str
    requirement: str
    installed: str = ""

    def __str__(self) -> str:
        if not self.installed:
            return f"{self.requirement} is not installed"
        return f"{self.requirement} is needed, {self.distribution} {self.installed} is installed"


def requirements_of(distribution: str) -> tuple[str, ...]:
    """The `Requires-Dist` lines of a distribution; empty when it is not installed."""
    try:
        return tuple(metadata.requires(distribution) or ())
    except metadata.PackageNotFoundError:
        return ()


def unmet_requirements(requires: Iterable[str]) -> tuple[UnmetRequirement, ...]:
    """Every requirement that the environment does not meet; requirements of extras are skipped."""
    return tuple(_unmet(map(Requirement, requires)))


def unmet_of(distribution: str) -> tuple[UnmetRequirement, ...]:
    """The unmet requirements of an installed distribution."""
    return unmet_requirements(requirements_of(distribution))


def _unmet(requirements: Iterable[Requirement]) -> Iterator[UnmetRequirement]:
    for one in requirements:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        name, wanted = normalise(one.name), f"{one.name}{one.specifier}"
        try:
            installed = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            yield UnmetRequirement(name, wanted)
            continue
        if not _allows(one, installed):
            yield UnmetRequirement(name, wanted, installed)


def _allows(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:  # a development build may name its version after a commit
        return True
