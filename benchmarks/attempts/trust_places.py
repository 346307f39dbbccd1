"""Locked code in places where it was not reviewed: one locked module under the name of another, by paths and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.locked_site import Act, Site, Way, asked, install, judged, lock, served, site_of, tried


def _fakes(site: Site) -> Path:
    """A further locked distribution, with modules for tests that have the names of those of the plugin; its folder."""
    evil = site.evil()
    modules = {"fakes/__init__.py": "", "fakes/parts.py": evil, "fakes/late.py": evil, "fakes/scorer.py": evil, "fakes/parts_own.py": ""}
    install(site.packages, "acme-fakes", {"acme.fake": "fakes.parts_own:None"}, modules)
    lock(site)
    return site.packages / "fakes"


def a_locked_folder_on_pythonpath(site: Site) -> None:
    site.environment["PYTHONPATH"] = str(_fakes(site))


def a_locked_folder_that_a_path_file_puts_first(site: Site) -> None:
    site.write(site.packages / "zz.pth", f"import sys; sys.path.insert(0, {str(_fakes(site))!r})\n")


def a_locked_folder_behind_a_link_on_pythonpath(site: Site) -> None:
    (site.root / "linked").symlink_to(_fakes(site))
    site.environment["PYTHONPATH"] = str(site.root / "linked")


def a_link_to_a_locked_module_on_pythonpath(site: Site) -> None:
    (site.shadow / "parts.py").symlink_to(_fakes(site) / "parts.py")


def a_finder_that_names_another_locked_file(site: Site) -> None:
    other = str(_fakes(site) / "scorer.py")
    site.first(
        "import sys, importlib.util\nclass Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        f"        return importlib.util.spec_from_file_location(name, {other!r}) if name == 'parts.scorer' else None\n"
        "sys.meta_path.insert(0, Finder)"
    )


AT_THE_START: tuple[Way, ...] = (
    a_locked_folder_on_pythonpath,
    a_locked_folder_that_a_path_file_puts_first,
    a_locked_folder_behind_a_link_on_pythonpath,
    a_link_to_a_locked_module_on_pythonpath,
    a_finder_that_names_another_locked_file,
)


async def locked_code_under_other_names(target: Target) -> list[str]:
    """Modules for tests that another locked distribution brings, first on the path, linked, or named by a finder, in a plugin's place."""
    return await tried(target, AT_THE_START)


def _package_is_another(site: Site) -> None:
    (site.packages / "parts").rename(site.root / "kept")
    (site.packages / "parts").symlink_to(site.packages / "fakes")


def _module_is_a_link_to_another(site: Site) -> None:
    (site.packages / "parts" / "late.py").unlink()
    (site.packages / "parts" / "late.py").symlink_to(site.packages / "fakes" / "late.py")


def _module_is_another_by_a_hard_link(site: Site) -> None:
    (site.packages / "parts" / "late.py").unlink()
    (site.packages / "parts" / "late.py").hardlink_to(site.packages / "fakes" / "late.py")


def _folder_of_the_package_is_in_front(site: Site) -> None:
    """Where the plugin lets its package look elsewhere, that is a link to another locked folder."""
    (site.packages / "fakes" / "extra.py").write_text(site.evil())
    (site.folder / "elsewhere").symlink_to(site.packages / "fakes")


LATER: tuple[tuple[str, str, Callable[[Site], object]], ...] = (
    ("a package that became another locked one", "import", _package_is_another),
    ("a module that became a link to another locked one", "import", _module_is_a_link_to_another),
    ("a module that became another locked one", "relative", _module_is_another_by_a_hard_link),
    ("a package that looks into another locked folder", "elsewhere", _folder_of_the_package_is_in_front),
)


async def locked_code_that_takes_another_place_later(target: Target) -> list[str]:
    """While it serves, a package or module becomes another locked one, by links of either kind, or the package looks there."""
    found = []
    for name, act, plant in target.rng.sample(LATER, len(LATER)):
        site = site_of(target)
        _fakes(site)
        code, log = await served(site, _act(site, act, plant))
        found += judged(site, name, code, log)
        if not (site.folder / "came").exists():
            found.append(f"{name}: the plugin was not asked")
    return found


def _act(site: Site, act: str, plant: Callable[[Site], object]) -> Act:
    async def do(serving: Mapping[str, object]) -> str:
        plant(site)
        return await asked(site, serving["ext_proc_port"], act)

    return do


ATTEMPTS = (
    Attempt(locked_code_under_other_names),
    Attempt(locked_code_that_takes_another_place_later),
)
