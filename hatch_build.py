"""Builds a wheel whose request path is compiled with mypyc when ENDPICK_COMPILE=1 says so; otherwise does nothing.

ENDPICK_COMPILE_LEVEL is how far the C compiler optimises: all the way (3), unless whoever only tests the result says less.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledRequestPath(BuildHookInterface[Any]):
    """Adds compiled twins of the modules that `tool.hatch.build.targets.wheel.hooks.custom` lists.

    Python prefers a compiled twin to the source beside it. None is written into the source tree, where it would hide later edits;
    for the same reason an editable install has none.
    """

    def dependencies(self) -> list[str]:
        """What building needs beyond hatchling; the runtime dependencies are there for their types."""
        return [*self.config["compiler"], *self.metadata.core.dependencies] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the results included; what the compilers say goes to the terminal."""
        if not _wanted() or version == "editable":
            return
        self._work = TemporaryDirectory()
        for twin, place in _compiled(sorted(self.modules()), Path(self._work.name)):
            build_data["force_include"][str(twin)] = place
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what initialize made."""
        if hasattr(self, "_work"):
            self._work.cleanup()

    def modules(self) -> set[str]:
        """Paths of what is to be compiled, from the root of the project."""
        root = Path(self.root)
        chosen, interpreted = ({path for pattern in self.config[key] for path in root.glob(pattern)} for key in ("modules", "interpreted"))
        return {str(path.relative_to(root)) for path in chosen - interpreted}


def _wanted() -> bool:
    return os.environ.get("ENDPICK_COMPILE") == "1"


def _compiled(modules: list[str], work: Path) -> Iterator[tuple[Path, str]]:
    """Each compiled file, and where it belongs in the wheel."""
    from mypyc.build import mypycify  # noqa: PLC0415 - installed only where `dependencies` asked for it
    from setuptools import Distribution  # noqa: PLC0415

    # What is not compiled is `make check`'s to judge, and its cache is not ours.
    options = ["--follow-imports=silent", f"--cache-dir={work / 'cache'}"]
    level = os.environ.get("ENDPICK_COMPILE_LEVEL", "3")
    extensions = mypycify([*options, *modules], target_dir=str(work / "c"), group_name="endpick", opt_level=level)
    distribution = Distribution({"name": "endpick", "ext_modules": extensions})
    build = distribution.get_command_obj("build_ext")
    build.build_lib, build.build_temp = str(work / "twins"), str(work / "objects")
    build.ensure_finalized()
    build.run()
    for twin in (work / "twins").rglob("*.so"):
        yield twin, str(twin.relative_to(work / "twins"))
