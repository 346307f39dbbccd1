"""Finds plugin types, hook objects and verbs in package metadata, without importing them."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, EntryPoint, PathDistribution
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from packaging.requirements import Requirement

API_MAJOR = 1  # major version of `endpick.api`, and the suffix of the entry-point group
OUR_GROUPS = "endpick."  # prefix of all entry-point groups for endpick
ENTRY_POINT_GROUP_PREFIX = "endpick.plugins.v"  # prefix of the groups of plugins: `endpick.plugins.v1`
HOOKS_ENTRY_POINT_GROUP = f"endpick.hooks.v{API_MAJOR}"  # group of hook objects; see `endpick.api.hooks`
VERBS_ENTRY_POINT_GROUP = f"endpick.verbs.v{API_MAJOR}"  # group of tables of verbs; see `endpick.cli.verbs`
HOST_DISTRIBUTION = "endpick"  # the distribution of the host and the built-in plugins

SEPARATE_PLUGINS: Mapping[str, str] = MappingProxyType(
    {
        "k8s-peer-discovery": "endpick-kubernetes",
        "kubernetes-discovery": "endpick-kubernetes",
        "precise-prefix-cache-producer": "endpick-kv-events",
        "precise-prefix-cache-scorer": "endpick-kv-events",
    }
)
"""The distributions of endpick's plugin types that are installed separately, by type."""

OWN_DISTRIBUTIONS = frozenset({HOST_DISTRIBUTION, *SEPARATE_PLUGINS.values()})

PACKAGE = Path(__file__).parent.parent

RequestPath = Literal["compiled", "interpreted"]


def request_path() -> RequestPath:
    """Return how the request path of this installation was built."""
    return "compiled" if any(PACKAGE.glob("extproc/session.*.so")) else "interpreted"


def resource(name: str) -> Path:
    """Return a folder of the repository's root, which a wheel has under `endpick/_data`.

    Raises:
        FileNotFoundError: neither place has it.
    """
    for place in (PACKAGE / "_data" / name, PACKAGE.parents[1] / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"'{name}' is neither in {PACKAGE / '_data'} nor in {PACKAGE.parents[1]}; reinstall endpick")


TYPE_PATTERN = r"[a-z][a-z0-9]*([.-][a-z0-9]+)*"  # such as `queue-scorer` or `acme.queue-scorer`

_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
_TYPE = re.compile(TYPE_PATTERN, re.ASCII)
_GROUP = re.compile(re.escape(ENTRY_POINT_GROUP_PREFIX) + r"(\d{1,9})", re.ASCII)


def is_valid_type(name: str) -> bool:
    """Return True if a plugin type is well-formed, such as `acme.queue-scorer`."""
    return _TYPE.fullmatch(name) is not None


def normalise(name: str) -> str:
    """Return the canonical form of a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """An entry point for a plugin type or hook object."""

    type: str  # name of the entry point; may be malformed
    api_major: int  # from the entry-point group
    distribution: str
    version: str
    target: str  # `module:attribute`; may not exist
    metadata_path: str  # `.dist-info` directory
    source_path: str = ""  # project directory of an editable install
    is_builtin: bool = False  # of endpick

    @property
    def is_valid(self) -> bool:
        """True if the type is well-formed."""
        return is_valid_type(self.type)

    @property
    def module(self) -> str:
        """The module of the target, from which the host imports the class or object."""
        return self.target.partition(":")[0].partition("[")[0].strip()

    @property
    def speaks_our_api(self) -> bool:
        """True if the entry point is in the group of this host's plugin API."""
        return self.api_major == API_MAJOR

    @property
    def is_usable(self) -> bool:
        """True if a configuration can use it."""
        return self.is_valid and self.speaks_our_api

    @property
    def origin(self) -> str:
        """Name and version of the distribution."""
        return f"{self.distribution} {self.version}".rstrip()


def import_place(module: str) -> str:
    """Return the file of a module without importing its packages; empty if there is none."""
    top, *inner = module.split(".")
    spec: ModuleSpec | None = find_spec(top)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return ""
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None:
        return ""
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")


def summary_of(candidate: Candidate) -> str:
    """Return the first line of a class's docstring from the source; empty without one."""
    name = candidate.target.partition(":")[2].partition("[")[0].strip()
    try:
        source, summaries = _source(candidate.module)
        return summaries.get(name) or _docstrings(source).get(name, "")
    except (OSError, ValueError, SyntaxError, ImportError):
        return ""


@functools.cache
def _source(module: str) -> tuple[bytes, Mapping[str, str]]:
    """Return a module's source, and the summaries found without a parser, which is slow."""
    source = Path(import_place(module)).read_bytes()
    return source, {match[1].decode(): match[2].decode() for match in _SUMMARY.finditer(source)}


_SUMMARY = re.compile(rb'^class (\w+)[^"\':#]*:\s+r?"""[ \t]*(?=[^\s"])([^\r\n\\]+?)(?:"""|\r?\n)', re.MULTILINE)
"""A class without strings and comments before its docstring, and the docstring's first line."""


@functools.cache
def _docstrings(source: bytes) -> Mapping[str, str]:
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in classes}


class Installed:
    """An installed distribution: its `.dist-info` or `.egg-info` directory, read on demand."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self._path = Path(str(cast("PathDistribution", distribution)._path))
        self.path = str(self._path)

    @cached_property
    def is_empty(self) -> bool:
        """True after an interrupted uninstall."""
        return self._path.is_dir() and not any((self._path / file).exists() for file in ("METADATA", "PKG-INFO"))

    @cached_property
    def name(self) -> str:
        """The name of the distribution, as its author published it."""
        return self._path.name.partition("-")[0] if self.is_empty else self._distribution.metadata["Name"]

    @cached_property
    def key(self) -> str:
        """The canonical name (PEP 503), by which copies of a distribution are compared."""
        return normalise(self.name)

    @cached_property
    def version(self) -> str:
        """The installed version; empty for an empty directory."""
        return "" if self.is_empty else self._distribution.version

    @property
    def origin(self) -> str:
        """Name and version of the distribution, as messages show them."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def requires(self) -> tuple[str, ...]:
        """The `Requires-Dist` lines, with their markers and extras."""
        return () if self.is_empty else tuple(self._distribution.requires or ())

    @cached_property
    def entry_points(self) -> tuple[EntryPoint, ...]:
        """The entry points in groups for endpick: plugins, hook objects and verbs."""
        return tuple(entry_point for entry_point in self._distribution.entry_points if entry_point.group.startswith(OUR_GROUPS))

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of all entry-point groups of the distribution, sorted."""
        return tuple(sorted({entry_point.group for entry_point in self._distribution.entry_points}))

    @cached_property
    def source_path(self) -> str:
        """Project directory of an editable install (PEP 610), else empty."""
        direct_url = json.loads(self._distribution.read_text("direct_url.json") or "{}")
        editable = direct_url.get("dir_info", {}).get("editable", False)
        return unquote(urlsplit(direct_url["url"]).path) if editable else ""


def find_installed(path: Sequence[str] | None = None) -> tuple[Installed, ...]:
    """Return the distributions on an import path (default: `sys.path`), in its order."""
    found = Distribution.discover() if path is None else Distribution.discover(path=list(path))
    return tuple(map(Installed, found))


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file in the RECORD of a distribution, with the digest it had when it was installed."""

    name: str
    place: Path
    algorithm: str
    digest: str  # urlsafe base64 without padding


def files_of(metadata_path: str) -> tuple[RecordedFile, ...]:
    """Return the files in RECORD that have a digest."""
    files = Distribution.at(metadata_path).files or ()
    return tuple(RecordedFile(str(file), Path(str(file.locate())), file.hash.mode, file.hash.value) for file in files if file.hash)


def for_endpick(copies: Iterable[Installed]) -> dict[str, Installed]:
    """Return the copies with entry points for endpick by canonical name; the first one counts."""
    first: dict[str, Installed] = {}
    for copy in copies:
        if copy.entry_points:
            first.setdefault(copy.key, copy)
    return first


def discover(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """Return the plugin types of all distributions on an import path, sorted; imports none."""
    return tuple(sorted({plugin for copy in for_endpick(find_installed(path)).values() for plugin in _plugins(copy)}))


def discover_hook_objects(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """Return all hook objects, sorted; `Candidate.type` is the name of the object."""
    return _discover_group(HOOKS_ENTRY_POINT_GROUP, path)


def discover_verb_tables() -> tuple[Candidate, ...]:
    """Return all tables of verbs, sorted; `Candidate.type` is the name of the table."""
    return _discover_group(VERBS_ENTRY_POINT_GROUP)


def _discover_group(group: str, path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    copies = for_endpick(find_installed(path)).values()
    found = [(entry, copy) for copy in copies for entry in copy.entry_points if entry.group == group]
    return tuple(sorted(_candidate(entry, API_MAJOR, copy) for entry, copy in found))


def find(candidates: Iterable[Candidate], plugin_type: str) -> tuple[Candidate, ...]:
    """Return the usable candidates for a type; several if distributions clash."""
    return tuple(candidate for candidate in candidates if candidate.type == plugin_type and candidate.is_usable)


def _plugins(copy: Installed) -> Iterator[Candidate]:
    for entry_point in copy.entry_points:
        match = _GROUP.fullmatch(entry_point.group)
        if match:
            yield _candidate(entry_point, int(match[1]), copy)


def _candidate(entry_point: EntryPoint, api_major: int, copy: Installed) -> Candidate:
    return Candidate(
        type=entry_point.name,
        api_major=api_major,
        distribution=copy.name,
        version=copy.version,
        target=entry_point.value,
        metadata_path=copy.path,
        source_path=copy.source_path,
        is_builtin=copy.key == HOST_DISTRIBUTION,
    )


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement that the environment does not meet."""

    distribution: str  # canonical name
    requirement: str  # without marker and extras
    installed: str = ""  # version

    def __str__(self) -> str:
        if not self.installed:
            return f"{self.requirement} is not installed"
        return f"{self.requirement} is needed, {self.distribution} {self.installed} is installed"


def requirements_of(distribution: str) -> tuple[str, ...]:
    """Return the `Requires-Dist` lines of a distribution; empty if it is not installed."""
    try:
        return tuple(metadata.requires(distribution) or ())
    except metadata.PackageNotFoundError:
        return ()


def extra_with(distribution: str, module: str) -> str:
    """Return the extra that installs the package named like a module; empty if there is none."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - `endpick list` needs none

    named = normalise(module.partition(".")[0])
    lines = [line for line in requirements_of(distribution) if normalise(Requirement(line).name) == named]
    return next((match[1] for line in lines if (match := _EXTRA.search(line))), "")


def unmet_requirements(requires: Iterable[str]) -> tuple[UnmetRequirement, ...]:
    """Return the requirements that the environment does not meet, without those of extras."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - `endpick list` needs none

    parsed = map(Requirement, requires)
    applying = (need for need in parsed if need.marker is None or need.marker.evaluate({"extra": ""}))
    return tuple(unmet for need in applying if (unmet := _unmet(need)) is not None)


def unmet_of(distribution: str) -> tuple[UnmetRequirement, ...]:
    """Return the unmet requirements of an installed distribution."""
    return unmet_requirements(requirements_of(distribution))


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _unmet(requirement: Requirement) -> UnmetRequirement | None:
    name, wanted = normalise(requirement.name), f"{requirement.name}{requirement.specifier}"
    installed = installed_version(requirement.name)
    if installed is None:
        return UnmetRequirement(name, wanted)
    return None if _allows(requirement, installed) else UnmetRequirement(name, wanted, installed)


def _allows(requirement: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:  # a development build, named after a commit
        return True
