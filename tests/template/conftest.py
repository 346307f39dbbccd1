"""Rendered and example projects, each made once per test run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from installing import only_one_at_a_time, shared_directory
from template.workshop import ROOT, Host, Project, install_host, install_project, project_in

EXAMPLES = ROOT / "examples" / "plugins"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where projects are made."""
    return shared_directory(tmp_path_factory, "template")


@pytest.fixture(scope="session")
def plugin_host(workshop: Path) -> Host:
    """The wheel of endpick, installed."""
    with only_one_at_a_time(workshop, "host"):
        if not (workshop / "done").exists():
            install_host(workshop)
            (workshop / "done").touch()
        return Host(workshop)


@pytest.fixture(scope="session")
def rendered(workshop: Path, plugin_host: Host) -> Callable[[str], Project]:
    """`rendered("scorer")`: the project that `endpick new sample --kind scorer --vendor acme` makes, installed."""

    def render(kind: str) -> Project:
        base = workshop / "rendered" / kind
        project = base / f"acme-sample-{kind}"
        with only_one_at_a_time(base, "project"):
            if not (base / "done").exists():
                new = ["endpick", "new", f"sample-{kind}", "--kind", kind, "--vendor", "acme", "--output", str(base)]
                subprocess.run([sys.executable, "-m", *new], check=True, capture_output=True, timeout=60)
                install_project(project, base, plugin_host)
                (base / "done").touch()
            return project_in(project, base, plugin_host)

    return render


@pytest.fixture(scope="session")
def example(workshop: Path, plugin_host: Host) -> Callable[[str], Project]:
    """`example("acme-carbon")`: a copy of that example project, installed."""

    def copy(name: str) -> Project:
        base = workshop / "examples" / name
        project = base / name
        with only_one_at_a_time(base, "project"):
            if not (base / "done").exists():
                shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns(".*_cache", ".hypothesis", "__pycache__"))
                install_project(project, base, plugin_host)
                (base / "done").touch()
            return project_in(project, base, plugin_host)

    return copy
