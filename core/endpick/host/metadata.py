"""Package metadata on the import path, every copy of it: also the stale, empty and doubled ones that pip no longer knows of."""

from __future__ import annotations

import email
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import importlib_metadata

from endpick.files import is_regular
from endpick.host.identity import is_running_host
from endpick.installation import HOST_DISTRIBUTION, OUR_GROUPS


@dataclass(frozen=True, slots=True)
class Metadata:
    """One metadata directory (`*.dist-info` or `*.egg-info`), read as far as plugins need it."""

    path: str
    """Of the directory itself."""

    stem_name: str
    """Normalised distribution name as the directory's name tells it: known even when the metadata is gone."""

    name: str
    """As its author writes it; empty for an empty leftover."""

    version: str
    requires: tuple[str, ...]
    entry_points: tuple[importlib_metadata.EntryPoint, ...]
    source_path: str
    """Where an editable install has its source; empty for any other install."""

    trouble: str = ""
    """Why its entry points cannot be read; it has none then."""

    @property
    def is_empty(self) -> bool:
        """Whether it is a leftover that says nothing: what an interrupted uninstall leaves behind."""
        return not self.name

    @property
    def key(self) -> str:
        """Under which name copies of the same distribution are recognised."""
        return normalise(self.name) if self.name else self.stem_name

    @property
    def is_host(self) -> bool:
        """Whether it is that of the endpick that runs; a name alone proves nothing."""
        named = normalise(self.name) == self.stem_name == HOST_DISTRIBUTION
        return named and is_running_host(self.path, self.source_path)

    @property
    def root(self) -> str:
        """The directory on the import path that holds it."""
        return str(Path(self.path).parent)


def normalise(name: str) -> str:
    """A distribution name in the one form in which all its spellings are equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_all(path: Sequence[str] | None = None) -> tuple[Metadata, ...]:
    """Everything on the import path (`sys.path` unless given), in its order."""
    return tuple(read(distribution) for distribution in _distributions(path))


def read_relevant(group_prefix: str, path: Sequence[str] | None = None) -> tuple[Metadata, ...]:
    """As `read_all`, but only distributions of which some copy has entry points in a group with this prefix.

    The cost of discovery is reading metadata, so that of the many other packages is left unread.
    """
    found = [(distribution, _text(distribution, "entry_points.txt")) for distribution in _distributions(path)]
    relevant = {_stem_name(distribution) for distribution, text in found if group_prefix in text}
    return tuple(read(distribution) for distribution, _ in found if _stem_name(distribution) in relevant)


def effective(copies: Iterable[Metadata]) -> dict[str, Metadata]:
    """For each distribution the copy that counts: the first on the import path that is not an empty leftover.

    Of those that claim to be endpick it is the first that is, if any is.
    """
    first: dict[str, Metadata] = {}
    for copy in copies:
        if not copy.is_empty and (copy.key not in first or (copy.is_host and not first[copy.key].is_host)):
            first[copy.key] = copy
    return first


def claimants(name: str, copies: Iterable[Metadata], path: Sequence[str] | None = None) -> tuple[Metadata, ...]:
    """All metadata that bears a distribution's name, in its directory's name or within, each directory once; empty leftovers left out.

    `copies` are those known already: one may bear the name within only.
    """
    context = {"name": name} if path is None else {"name": name, "path": list(path)}
    found = (*copies, *map(read, importlib_metadata.Distribution.discover(**context)))
    key = normalise(name)
    bearing = (copy for copy in found if not copy.is_empty and key in (copy.key, copy.stem_name))
    return tuple({os.path.realpath(copy.path): copy for copy in bearing}.values())


def module_of(target: str) -> str:
    """The module of an entry point's target, which is `module`, `module:attribute`, or either with extras in brackets."""
    return target.partition(":")[0].partition("[")[0].strip()


def top_level_modules(metadata_path: str) -> tuple[str, ...]:
    """The top-level modules to which a distribution's entry points for endpick lead, sorted."""
    offered, _ = _entry_points(importlib_metadata.PathDistribution(Path(metadata_path)))
    return tuple(sorted({module_of(one.value).partition(".")[0] for one in offered if one.group.startswith(OUR_GROUPS)}))


def read(distribution: importlib_metadata.Distribution) -> Metadata:
    """One metadata directory."""
    header = email.message_from_string(_header(distribution))
    entry_points, trouble = _entry_points(distribution)
    return Metadata(
        path=str(distribution),
        stem_name=_stem_name(distribution),
        name=(header["Name"] or "").strip(),
        version=(header["Version"] or "").strip(),
        requires=tuple(header.get_all("Requires-Dist", ())),
        entry_points=entry_points,
        source_path=_source_path(_text(distribution, "direct_url.json")),
        trouble=trouble,
    )


def _header(distribution: importlib_metadata.Distribution) -> str:
    """The metadata without the package's README, whose parsing is what makes metadata slow; empty for an empty leftover."""
    text = _text(distribution, "METADATA") or _text(distribution, "PKG-INFO")
    return text.partition("\n\n")[0]


def _text(distribution: importlib_metadata.Distribution, file: str) -> str:
    """A file of the metadata, empty where there is none; what is no text is replaced, lest one broken package stop every command."""
    place = Path(str(distribution), file)
    if _never_ends(place):
        return ""
    try:
        return distribution.read_text(file) or ""
    except UnicodeDecodeError:
        return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""


def _entry_points(distribution: importlib_metadata.Distribution) -> tuple[tuple[importlib_metadata.EntryPoint, ...], str]:
    """Its entry points, and why they cannot be read; what raises is `importlib_metadata`, at lines without `=` and at what is no text."""
    if _never_ends(Path(str(distribution), "entry_points.txt")):
        return (), "entry_points.txt is no regular file"
    try:
        return tuple(distribution.entry_points), ""
    except (TypeError, ValueError) as problem:
        return (), f"{type(problem).__name__}: {problem}"


def _never_ends(place: Path) -> bool:
    """Whether it is a pipe or a device, which would be read for ever; what is not there is for who reads it."""
    return os.path.exists(place) and not (is_regular(place) or place.is_dir())  # noqa: PTH110 - takes what is no path as well


def _distributions(path: Sequence[str] | None) -> list[importlib_metadata.Distribution]:
    context = {} if path is None else {"path": list(path)}
    return list(importlib_metadata.Distribution.discover(**context))


def _stem_name(distribution: importlib_metadata.Distribution) -> str:
    return normalise(Path(str(distribution)).stem.partition("-")[0])


def _source_path(direct_url: str) -> str:
    try:
        origin = json.loads(direct_url or "{}")
    except (ValueError, RecursionError):
        return ""
    directory, url = (origin.get("dir_info"), origin.get("url")) if isinstance(origin, dict) else (None, None)
    if not isinstance(directory, dict) or not directory.get("editable") or not isinstance(url, str):
        return ""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # such as brackets that do not close
        return ""
    return path if path.isprintable() else ""  # a NUL or a lone surrogate is in no path that an installer wrote


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement of a distribution that the environment does not meet."""

    distribution: str
    """Normalised name of what is required; empty when the requirement cannot be read."""
    requirement: str
    """Name and versions, without marker and extras."""
    installed: str = ""
    """The version that is installed; empty when none is."""

    def __str__(self) -> str:
        if not self.distribution:
            return f"'{self.requirement}' cannot be read as a requirement"
        if not self.installed:
            return f"{self.requirement} is not installed"
        return f"{self.requirement} is needed, {self.distribution} {self.installed} is installed"


def requirements_of(distribution: str) -> tuple[str, ...]:
    """The `Requires-Dist` lines of an installed distribution; none when it is not installed."""
    try:
        return tuple(importlib_metadata.requires(distribution) or ())
    except importlib_metadata.PackageNotFoundError:
        return ()


_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)


def installed_version(name: str) -> str | None:
    """Of the first copy that tells one; None when none is installed."""
    # As `importlib_metadata.version`, which parses the README behind the header as well, twice: for twenty requirements that is felt.
    for distribution in importlib_metadata.Distribution.discover(name=name):
        found = _VERSION.search(_header(distribution))
        if found is not None:
            return found[1]
    return None


def offered_at(metadata_path: str) -> tuple[tuple[str, str], ...]:
    """Name and target of every entry point of the distribution whose metadata directory this is."""
    offered, _ = _entry_points(importlib_metadata.PathDistribution(Path(metadata_path)))
    return tuple((entry_point.name, entry_point.value) for entry_point in offered)
