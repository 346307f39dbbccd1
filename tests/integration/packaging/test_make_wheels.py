"""For which Pythons wheels are built, and what a compiled one is: the last is shown where it is installed, by `make compiled`."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

from endpick.host.discovery import request_path

ROOT = Path(__file__).parents[3]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")


@pytest.fixture
def make_wheels():
    spec = importlib.util.spec_from_file_location("make_wheels", ROOT / "tools" / "make_wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """Writes a program of this name to the only folder on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.mark.skipif(not HEADERS.exists(), reason=f"needs {HEADERS}")
def test_wheels_are_built_for_each_python_with_headers(make_wheels, pythons, capsys):
    pythons("python3.10", f'exec {sys.executable} "$@"')
    good = pythons("python3.11", f'exec {sys.executable} "$@"')
    not_there = pythons("python3.12", "exit 127")
    without_headers = pythons("python3.13", "echo /nowhere/Python.h")

    assert list(make_wheels.usable_pythons()) == [good]
    told = capsys.readouterr().err
    assert f"{not_there}: left out" in told
    assert f"{without_headers}: left out" in told


def test_without_a_python_to_build_for_it_says_so(make_wheels, pythons, capsys):
    assert make_wheels.main([]) == 1
    assert "python3-dev" in capsys.readouterr().err


@pytest.mark.skipif(request_path() == "interpreted", reason="endpick is not compiled here")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="manylinux is for Linux")
def test_compiled_wheel_has_a_platform_tag():
    installed = distribution("endpick")
    tags = [line.removeprefix("Tag: ") for line in (installed.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    version = f"cp3{sys.version_info.minor}"

    assert tags
    assert all(tag.startswith(f"{version}-{version}-manylinux") and tag.endswith(os.uname().machine) for tag in tags)
    assert not [file for file in installed.files or () if file.parts[0].endswith(".libs")], "it needs no library beyond the system's"
