"""endpick as users get it: a wheel, unpacked beside its dependencies and away from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("endpick-*.whl")
    packages = folder / "packages"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(packages)], check=True)
    return Installation(wheel, packages, _dependencies(folder / "dependencies"))


def _dependencies(folder: Path) -> Path:
    """Everything installed here except endpick itself, as links."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("endpick", "_endpick", "__editable__")):
            (folder / entry.name).symlink_to(entry)
    return folder
