"""Which requirements of a distribution the environment does not meet. Imports `packaging`, which serving built-in plugins does without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from endpick.host.metadata import UnmetRequirement, installed_version, normalise


def unmet_requirements(requires: Iterable[str]) -> tuple[UnmetRequirement, ...]:
    """Each requirement that the environment does not meet; those of extras are not judged."""
    return tuple(_judge(requires))


def _judge(requires: Iterable[str]) -> Iterator[UnmetRequirement]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield UnmetRequirement("", text)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = installed_version(requirement.name)
        if installed is None:
            yield UnmetRequirement(normalise(requirement.name), _plain(requirement))
        elif not _contains(requirement, installed):
            yield UnmetRequirement(normalise(requirement.name), _plain(requirement), installed)


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _contains(requirement: Requirement, version: str) -> bool:
    try:
        installed = Version(version)  # `contains` answers what it cannot read differently from release to release
    except InvalidVersion:
        return True
    return requirement.specifier.contains(installed, prereleases=True)
