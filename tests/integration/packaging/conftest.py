"""endpick as users get it: a wheel, unpacked beside its dependencies and away from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from installing import build_wheel, link_dependencies

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Installation:
    """A folder with the unpacked wheel, and a folder with everything else that is installed here."""

    wheel: Path
    packages: Path
    dependencies: Path

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run Python with these two folders and the standard library only."""
        path = os.pathsep.join(map(str, (self.packages, self.dependencies)))
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=cwd,
            env={"PYTHONPATH": path, "PATH": os.environ["PATH"], "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Build the wheel from this checkout and unpack it."""
    folder = tmp_path_factory.mktemp("installation")
    wheel = build_wheel(ROOT, folder)
    packages = folder / "packages"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(packages)], check=True)
    return Installation(wheel, packages, link_dependencies(folder / "dependencies"))
