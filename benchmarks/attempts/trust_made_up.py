"""Distributions that are on no disk, and shared libraries: what else may stand where a locked plugin does."""

from __future__ import annotations

import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.locked_site import Site, Way, install, lock, tried

_FINDER = """
import sys
from importlib import metadata


class Made(metadata.Distribution):
    def __init__(self, name, files, place):
        self.given, self.files_, self._path = name, files, place

    def read_text(self, name):
        return self.files_.get(name)

    def locate_file(self, path):
        import pathlib
        return pathlib.Path(SHADOW) / path


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None

    @staticmethod
    def find_distributions(context=None):
        return [{made}]


sys.meta_path.{how}
"""


def _made_up(site: Site, name: str, points: str, how: str = "insert(0, Finder)", version: str = "1.0", record: bool = False) -> None:
    """A finder that offers a distribution which is in memory, and whose code is in the shadow."""
    site.write(site.shadow / "shady.py")
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "entry_points.txt": f"[endpick.plugins.v1]\n{points}\n",
    }
    if record:
        files["RECORD"] = (site.information / "RECORD").read_text()
    place = f"__import__('pathlib').Path({str(site.information)!r})"
    made = f"Made({name!r}, {files!r}, {place})"
    site.first(f"SHADOW = {str(site.shadow)!r}\n" + _FINDER.replace("{made}", made).replace("{how}", how))


def a_distribution_in_memory_that_has_the_locked_name(site: Site) -> None:
    _made_up(site, "acme-parts", "acme.even = shady:Even")


def a_distribution_in_memory_with_the_record_of_the_locked_one(site: Site) -> None:
    _made_up(site, "acme-parts", "acme.even = shady:Even", record=True)


def a_distribution_in_memory_after_the_locked_one(site: Site) -> None:
    _made_up(site, "acme-parts", "acme.even = shady:Even", how="append(Finder)", record=True)


def a_distribution_in_memory_that_offers_the_type(site: Site) -> None:
    _made_up(site, "acme-other", "acme.even = shady:Even")


def a_distribution_in_memory_that_offers_the_type_in_capitals(site: Site) -> None:
    _made_up(site, "ACME_Parts", "Acme.Even = shady:Even\nacme.even = shady:Even", version="9.9")


def a_distribution_in_memory_that_says_it_is_endpick(site: Site) -> None:
    _made_up(site, "endpick", "max-score-picker = shady:Even\nfile-discovery = shady:Even\nacme.even = shady:Even")


def _library(site: Site, place: Path) -> None:
    """A shared library of Python's under another name: that it is run at all is what counts, so the attempt looks for the refusal."""
    folder = Path(sysconfig.get_paths()["platstdlib"]) / "lib-dynload"
    source = next((each for each in sorted(folder.glob("_*.so"))), None)
    site.write(place, b"\x7fELF" if source is None else source.read_bytes())


def a_shared_library_beside_the_module(site: Site) -> None:
    for suffix in EXTENSION_SUFFIXES:
        _library(site, site.packages / "parts" / f"scorer{suffix}")


def a_shared_library_beside_the_package(site: Site) -> None:
    for suffix in EXTENSION_SUFFIXES:
        _library(site, site.packages / f"parts{suffix}")


def a_shared_library_in_the_package(site: Site) -> None:
    for suffix in EXTENSION_SUFFIXES:
        _library(site, site.packages / "parts" / f"__init__{suffix}")


def a_shared_library_that_is_optional(site: Site) -> None:
    for suffix in EXTENSION_SUFFIXES:
        _library(site, site.packages / "parts" / f"speedups{suffix}")


def a_folder_where_a_shared_library_is_looked_for(site: Site) -> None:
    for suffix in EXTENSION_SUFFIXES:
        (site.packages / "parts" / f"scorer{suffix}").mkdir()
    site.write(site.packages / "parts" / "scorer" / "__init__.py")


def another_part_of_a_namespace(site: Site) -> None:
    """The plugin is in a namespace package, of which another folder has a part with the same module."""
    modules = {
        "acmespace/deep/even.py": (site.packages / "parts" / "scorer.py").read_text().replace("from parts import acts", "acts = None")
    }
    install(site.packages, "acme-space", {"acme.spaced": "acmespace.deep.even:Even"}, modules)
    lock(site)
    config = site.folder / "config.yaml"
    config.write_text(config.read_text().replace("acme.even", "acme.spaced"))
    site.write(site.shadow / "acmespace" / "deep" / "even.py")


def another_part_of_a_namespace_that_is_a_package(site: Site) -> None:
    another_part_of_a_namespace(site)
    site.write(site.shadow / "acmespace" / "__init__.py")


_IN_MEMORY: tuple[Way, ...] = (
    a_distribution_in_memory_that_has_the_locked_name,
    a_distribution_in_memory_with_the_record_of_the_locked_one,
    a_distribution_in_memory_after_the_locked_one,
    a_distribution_in_memory_that_offers_the_type,
    a_distribution_in_memory_that_offers_the_type_in_capitals,
    a_distribution_in_memory_that_says_it_is_endpick,
)
_BESIDE: tuple[Way, ...] = (
    a_shared_library_beside_the_module,
    a_shared_library_beside_the_package,
    a_shared_library_in_the_package,
    a_shared_library_that_is_optional,
    a_folder_where_a_shared_library_is_looked_for,
    another_part_of_a_namespace,
    another_part_of_a_namespace_that_is_a_package,
)


async def distributions_in_memory(target: Target) -> list[str]:
    """Finders of metadata offer distributions that are on no disk, with the locked name, its RECORD, its type, or endpick's name."""
    return await tried(target, _IN_MEMORY)


async def libraries_and_parts_of_namespaces(target: Target) -> list[str]:
    """Shared libraries beside locked modules, in their package, where one is optional; another part of a plugin's namespace."""
    return await tried(target, _BESIDE)


ATTEMPTS = (
    Attempt(distributions_in_memory),
    Attempt(libraries_and_parts_of_namespaces),
)
