"""The pages as a whole: they build without a warning, are fresh, and begin with what the reader will be able to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, Block, all_blocks, blocks, pages
from endpick.cli.main import VERBS

LANGUAGES = {"yaml", "console", "python", "toml", "json", "text", "{toctree}"}
MARKETING = re.compile(r"\b(blazing|seamless\w*|effortless\w*|world-class|cutting-edge|simply|easily|powerful)\b", re.IGNORECASE)
PAGES = [page for page in pages() if "docs" in page.parts]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_begins_with_its_title_and_a_sentence_for_the_reader(page: Path):
    text = re.sub(r"\A<!--.*?-->\s*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    title, _, rest = text.partition("\n\n")
    assert re.fullmatch(r"# \S.*", title)
    assert re.match(r"[A-Z`][^#|]*[.:]", rest), "the first paragraph says what the reader will be able to do"
    assert not MARKETING.search(text)


@pytest.mark.parametrize("page", [*pages()], ids=named)
def test_a_page_uses_known_languages_only(page: Path):
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("block", [*all_blocks("python"), *all_blocks("toml"), *all_blocks("json")], ids=lambda block: block.name)
def test_code_blocks_parse(block: Block):
    import json
    import tomllib

    match block.language:
        case "python" if "reference" in block.page.parts:
            return  # declarations without bodies, generated from code that does parse
        case "python":
            compile(block.text, block.name, "exec")
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)


def test_every_dependency_and_extra_is_argued_for():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"]}
    text = (ROOT / "docs" / "explanation" / "dependencies.md").read_text(encoding="utf-8")
    argued = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for name in row.split(",")}
    assert names <= argued
    assert all(f"`{extra}`" in text for extra in project["optional-dependencies"])


def test_contributors_are_told_every_make_target():
    made = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    told = re.findall(r"^\| `make ([a-z-]+)[^`]*` \| \S", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(made)


def test_the_changelog_names_every_verb():
    told = set(re.findall(r"`(?:endpick )?([a-z-]+)`", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    assert set(VERBS) <= told


def test_every_page_is_reachable_from_the_index():
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            listed |= {
                (page.parent / entry).with_suffix(".md").resolve() for entry in tree.split("\n") if entry and not entry.startswith(":")
            }
    assert {page.resolve() for page in PAGES} - listed == {(ROOT / "docs" / "index.md").resolve()}
