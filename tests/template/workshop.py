"""Projects as their users have them: built into a wheel, and installed beside the wheel of endpick."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

from installing import build_wheel, link_dependencies, make_venv, only_one_at_a_time, pip_install, site_packages

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Host:
    """A virtual environment with endpick's wheel in it, whose packages projects' own environments see."""

    folder: Path

    @property
    def site(self) -> Path:
        """Where endpick is installed."""
        return site_packages(self.folder / "host")

    @property
    def dependencies(self) -> Path:
        """Everything else that is installed where the tests run."""
        return self.folder / "dependencies"

    @property
    def mypy_cache(self) -> Path:
        """What mypy has learnt of endpick and its dependencies."""
        return self.folder / "mypy-cache"

    def run(self, *arguments: str) -> str:
        """Run `python -m …`, away from this checkout."""
        return run_module(self.folder / "host" / "bin" / "python", self.folder, *arguments)


@dataclass(frozen=True)
class Project:
    """A plugin project and the virtual environment in which it is installed."""

    folder: Path
    python: Path
    mypy_cache: Path

    @property
    def name(self) -> str:
        """Folder and distribution."""
        return self.folder.name

    def run(self, *arguments: str) -> str:
        """Run `python -m …` in the project's folder; it must succeed. Returns what it prints."""
        return run_module(self.python, self.folder, *arguments)

    def test(self) -> str:
        """Run the project's own tests, with no other pytest plugins than it asks for and endpick brings."""
        asked_for = (self.folder / "pyproject.toml").read_text()
        borrowed = {"asyncio": "pytest-asyncio", "randomly": "pytest-randomly", "timeout": "pytest-timeout", "xdist": "pytest-xdist"}
        unasked = [f"-pno:{plugin}" for plugin, distribution in borrowed.items() if distribution not in asked_for]
        return self.run("pytest", "-q", "-pno:cacheprovider", *unasked)

    def check_types_and_style(self) -> None:
        """Run mypy and ruff as the project has set them up."""
        # mypy takes a file of the same module name, size and second for the one that it has seen in another project.
        for file in self.folder.rglob("*.py"):
            os.utime(file, (second := zlib.crc32(str(file).encode()), second))
        # One at a time: the first fills the cache with what all projects import.
        with only_one_at_a_time(self.mypy_cache, "mypy"):
            self.run("mypy", "--cache-dir", str(self.mypy_cache))
        self.run("ruff", "check", "--no-cache")
        self.run("ruff", "format", "--check", "--no-cache")

    def listed(self) -> dict[str, str]:
        """Plugin types that the project's distribution offers, with their status."""
        plugins = json.loads(self.run("endpick", "list", "--load", "--format", "json"))["plugins"]
        return {plugin["type"]: plugin["status"] for plugin in plugins if plugin["distribution"] == self.name}


def install_host(folder: Path) -> Host:
    """Build endpick's wheel from this checkout and install it."""
    host = Host(folder)
    link_dependencies(host.dependencies)
    (host.dependencies / "bin").symlink_to(sysconfig.get_path("scripts"))  # where ruff looks for its program
    host.mypy_cache.mkdir()
    pip_install(make_venv(folder / "host", [host.dependencies]), build_wheel(ROOT, folder / "wheel"))
    return host


def install_project(project: Path, folder: Path, host: Host) -> Project:
    """Build a project's wheel and install it into a fresh environment."""
    python = make_venv(folder / "venv", [host.site, host.dependencies])
    pip_install(python, build_wheel(project, folder / "wheel"))
    return project_in(project, folder, host)


def project_in(project: Path, folder: Path, host: Host) -> Project:
    """What `install_project` made in this folder."""
    return Project(project, folder / "venv" / "bin" / "python", host.mypy_cache)


def run_module(python: Path, folder: Path, *arguments: str) -> str:
    """Run `python -m …` in a folder, with nothing of this checkout on the path; it must succeed. Returns what it prints."""
    # CI is what hypothesis looks at before it insists on quick examples.
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "CI": "true", "NO_COLOR": "1"}
    command = [str(python), "-m", *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, f"{' '.join(arguments)} ended with {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout
