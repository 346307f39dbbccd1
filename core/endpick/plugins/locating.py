"""Where a module would be imported from, found without importing anything."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def locate(module: str) -> Path | None:
    """The file of a module, or the directory of a package without one; None when the import system would not find it.

    Parents are looked at, not imported, so a module that computes its own search path may be missed.
    """
    spec = _spec(module)
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        return Path(spec.origin)
    return next((Path(place) for place in spec.submodule_search_locations or ()), None)


def source_files(module: str) -> tuple[Path, ...]:
    """Every Python file of the top-level package (or module) that `module` belongs to, sorted; none when it is not found."""
    place = locate(module.partition(".")[0])
    if place is None:
        return ()
    if place.name != "__init__.py" and place.is_file():
        return (place,)
    return tuple(sorted((place.parent if place.is_file() else place).rglob("*.py")))


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
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None
