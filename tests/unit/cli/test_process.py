"""What is on the import path when a verb runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from endpick.cli.process import leave_unsafe_path

SCRIPT = Path(sys.executable).with_name("endpick")


@pytest.fixture
def path(monkeypatch, tmp_path):
    """`path(first)`: what is left of an import path that begins so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "endpick")])

    def left(first):
        monkeypatch.setattr(sys, "path", [str(first), "/usr/lib/elsewhere"])
        leave_unsafe_path()
        return sys.path

    return left


@pytest.mark.parametrize("first", ["", "bin"])
def test_the_working_directory_and_that_of_the_script_are_taken_away(path, tmp_path, first):
    assert path(tmp_path / first) == ["/usr/lib/elsewhere"]


def test_any_other_directory_stays(path, tmp_path):
    assert path(tmp_path / "given") == [str(tmp_path / "given"), "/usr/lib/elsewhere"]


def test_an_empty_path_stays_empty(monkeypatch):
    monkeypatch.setattr(sys, "path", [])

    leave_unsafe_path()

    assert sys.path == []


def run(*command, cwd):
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_with_pythons_own_safe_path_nothing_is_taken_away(path, tmp_path, monkeypatch):
    """Python adds nothing then, so what comes first was given by an operator."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=True))

    assert path(tmp_path)[0] == str(tmp_path)


def test_the_endpick_script_begins_here_as_well():
    assert "from endpick.cli.process import main" in SCRIPT.read_text()


@pytest.mark.parametrize("command", [[sys.executable, "-m", "endpick"], [str(SCRIPT)]], ids=["module", "script"])
def test_a_module_in_the_working_directory_is_not_imported(tmp_path, command):
    (tmp_path / "click.py").write_text("raise AssertionError('imported from the working directory')")

    assert "Commands:" in run(*command, "--help", cwd=tmp_path)
