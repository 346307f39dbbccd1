"""Runs the conformance kit over the plugins that pages show, and the tests that pages show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.page_plugins import DISTRIBUTION, distribution_of, entry_points_of
from docs.pages import ROOT, blocks, named, pages

PAGES = [page for page in pages() if entry_points_of(page)]
WITH_TESTS = [page for page in pages() if any(block.file.startswith("tests/") for block in blocks(page))]


@pytest.fixture
def distribution(make_distribution: Callable[..., Path]) -> Callable[[Path], Path]:
    return lambda page: distribution_of(page, make_distribution)


def test_pages_with_plugins_are_found():
    assert {page.stem for page in PAGES} >= {
        "README",
        "your-first-scorer",
        "filter-by-label",
        "prefill-decode",
        "test-a-plugin",
        "write-a-data-source",
        "use-a-custom-metric",
    }


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_plugins_of_a_page_pass_the_kit(page: Path, distribution, run_cli):
    result = run_cli("test", "--dist", DISTRIBUTION, path=[distribution(page)])
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.stdout.count("passed") == len(entry_points_of(page)), result.stdout


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_TESTS, ids=named)
def test_tests_of_a_page_pass(page: Path, distribution, tmp_path: Path):
    for block in (block for block in blocks(page) if block.file):
        path = tmp_path / "project" / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    search_path = os.pathsep.join(map(str, [distribution(page), ROOT / "core", ROOT / "builtin_plugins" / "builtin"]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n0", "."]
    environment = {**os.environ, "PYTHONPATH": search_path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
