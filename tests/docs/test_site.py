"""The pages as a whole: they build without warnings, are fresh and consistent with the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.pages import ROOT, all_blocks, blocks, named, pages
from endpick.cli.verbs import HOST_VERBS, installed_verbs

LANGUAGES = {"yaml", "console", "python", "toml", "json", "text", "{toctree}"}
MARKETING = re.compile(r"\b(blazing|seamless\w*|effortless\w*|world-class|cutting-edge|simply|easily|powerful)\b", re.IGNORECASE)
MOST_WORDS = 22_000  # of pages by hand: the reference has as many as the docstrings
PAGES = [page for page in pages() if "docs" in page.parts]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_site_builds_without_a_warning(tmp_path: Path):
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install --group docs")
    folders = ["-d", str(tmp_path / "trees"), str(ROOT / "docs"), str(tmp_path / "html")]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", *folders]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    built = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, env=environment)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "html" / "index.html").exists()


@pytest.mark.long
@pytest.mark.timeout(60)
def test_the_generated_pages_are_fresh():
    command = [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_pages_begin_with_a_title_and_a_sentence():
    begins = re.compile(r"(?s)(<!--.*?-->\s*)?# \S[^\n]*\n\n[A-Z`][^#|]*[.:]")
    assert [named(page) for page in PAGES if not begins.match(page.read_text(encoding="utf-8"))] == []


def test_pages_contain_no_marketing():
    assert [named(page) for page in PAGES if MARKETING.search(page.read_text(encoding="utf-8"))] == []


def test_pages_use_known_languages_only():
    assert [block.name for page in pages() for block in blocks(page) if block.language not in LANGUAGES] == []


def test_pages_by_hand_stay_short():
    tokens = (token for page in PAGES if "reference" not in page.parts for token in page.read_text(encoding="utf-8").split())
    assert sum(any(character.isalnum() for character in token) for token in tokens) <= MOST_WORDS


@pytest.mark.parametrize(
    ("language", "parse"), [("python", lambda text: compile(text, "page", "exec")), ("toml", tomllib.loads), ("json", json.loads)]
)
def test_code_blocks_parse(language: str, parse: Callable[[str], object]):
    problems = []
    for block in all_blocks(language):
        if language == "python" and "reference" in block.page.parts:
            continue  # generated declarations without bodies
        try:
            parse(block.text)
        except (SyntaxError, ValueError) as error:
            problems.append(f"{block.name}: {error}")
    assert problems == []


def test_every_dependency_and_extra_is_argued_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"]}
    text = (ROOT / "docs" / "explanation" / "dependencies.md").read_text(encoding="utf-8")
    argued = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for name in row.split(",")}
    assert names <= argued
    assert all(f"`{extra}`" in text for extra in project["optional-dependencies"])


def test_contributing_lists_every_make_target():
    defined = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^\| `make ([a-z-]+)[^`]*` \| \S", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(defined)


def test_make_runs_tests_that_exist():
    commands = subprocess.run(["make", "-n", "compiled", "real", "real-kube"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"\btests/\S+", commands))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_changelog_names_every_verb():
    words = set(re.findall(r"`(?:endpick )?([a-z-]+)`", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    assert {*HOST_VERBS, *installed_verbs().verbs} <= words


def test_every_page_is_reachable_from_the_index():
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            entries = (line for line in tree.split("\n") if line and not line.startswith(":"))
            listed |= {(page.parent / entry).with_suffix(".md").resolve() for entry in entries}
    assert {page.resolve() for page in PAGES} - listed == {(ROOT / "docs" / "index.md").resolve()}
