"""Installs wheels and projects for tests, without network and once per test run however many workers it has."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def shared_directory(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """One directory for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    shared.mkdir(exist_ok=True)
    return shared


@contextmanager
def only_one_at_a_time(base: Path, name: str) -> Iterator[None]:
    """Keep other workers out while something in `base` is being made."""
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_wheel(project: Path, target: Path) -> Path:
    """Build a project's wheel with the build backend that is installed here."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(project)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def make_venv(directory: Path, borrowed: Sequence[Path]) -> Path:
    """A new virtual environment without pip that also sees the packages in the folders `borrowed`; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, capture_output=True)
    (site_packages(directory) / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    return directory / "bin" / "python"


def site_packages(venv: Path) -> Path:
    """Where a virtual environment keeps its packages."""
    return next((venv / "lib").glob("python3*")) / "site-packages"


def pip_install(python: Path, *projects: Path, options: Sequence[str] = ()) -> None:
    """Install projects or wheels into the environment of `python`, without network."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*command, *offline, *options, *map(str, projects)], check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def link_dependencies(folder: Path) -> Path:
    """Fill a new folder with links to everything installed here except endpick itself."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("endpick", "_endpick", "__editable__")):
            (folder / entry.name).symlink_to(entry)
    return folder
