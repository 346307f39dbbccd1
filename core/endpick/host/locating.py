"""Where Python would import a module from, found without importing anything."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from endpick.host.guard import ImportGuard

MODULE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
"""Of files that hold a module. Byte code is left out: it counts only where there is no source, and then there is nothing to review."""


def locate(module: str) -> Path | None:
    """The file of a module, or the directory of a package without one; None when the import system would not find it.

    Parents are looked at, not imported, so a module that computes its own search path may be missed.
    """
    return next(iter(places(module)), None)


def places(module: str) -> tuple[Path, ...]:
    """The file of a module; of a package without one all its directories, first to last."""
    spec = _spec(module)
    if spec is None:
        return ()
    if spec.origin and spec.has_location:
        return (Path(spec.origin),)
    return tuple(Path(place) for place in spec.submodule_search_locations or ())


def module_files(place: Path) -> tuple[Path, ...]:
    """Every file with a module in a package, given by its directory or its `__init__` file, sorted; a module's file is the only one."""
    if place.is_file() and not place.name.startswith("__init__."):
        return (place,)
    package = place.parent if place.is_file() else place
    return tuple(sorted(file for file in package.rglob("*") if file.name.endswith(MODULE_SUFFIXES)))


def _spec(module: str) -> ModuleSpec | None:
    top, *inner = module.split(".")
    spec = _top_level_spec(top)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name only: a dotted one would make a namespace package ask for its parent, which is not imported.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level_spec(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if isinstance(finder, ImportGuard):
            continue  # it refuses what is asked about here
        find_spec = getattr(finder, "find_spec", None)  # a very old finder has none, and Python leaves it out as well
        spec: ModuleSpec | None = None if find_spec is None else find_spec(name, None)
        if spec is not None:
            return spec
    return None
