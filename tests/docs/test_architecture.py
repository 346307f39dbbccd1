"""The map for contributors names what is there, and the pictures of the architecture show the calls that happen."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from docs.pages import ROOT

GENERATOR = ROOT / "tools" / "generate_architecture.py"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMITTED = re.compile(r"(?:\.github|benchmarks|builtin_plugins|core|docs|examples|plugin_template|schemas|tests|tools)/[\w./{}-]+")


class Link(NamedTuple):
    """A name, and the file where it is to be found."""

    name: str
    path: str


LINKS = [
    Link(code or text, path) for code, text, path in re.findall(r"\[(?:`([^`]+)`|([^\]`]+))\]\(([^)\s]+)\)", TEXT) if "://" not in path
]
NAMED = sorted({link for link in LINKS if link.name != link.path})
CODE = set(re.findall(r"`([^`\n]+)`", TEXT))
MADE = {"docs/_build"}
"""By a command that the page names; not committed."""


@pytest.mark.long
@pytest.mark.timeout(90)
def test_the_pictures_of_the_architecture_show_the_calls_that_happen() -> None:
    checked = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, timeout=80, check=False)

    assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}\n`make schemas` draws them anew; look at what has changed"


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that chooses what is on a picture."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("docs_pictures.observe")


DUMPS, PARSE, UNESCAPE, SCORER = "json:dumps", "ast:parse", "html:unescape", "endpick_builtin.scorers.load:QueueScorer.score"


def shown(observe: ModuleType, *stacks: tuple[str, ...], depth: int = 9) -> list[str]:
    """A stack begins with a name for the call of its outermost function; the others are functions, each `module:name`."""
    made = [observe.Stack(tuple(observe.Function(*each.split(":")) for each in stack[1:]), hash(stack[0])) for stack in stacks]
    return [f"{call.caller} → {call.callee.name}" for call in observe.calls(made, "outside", depth=depth)]


def test_a_picture_shows_a_call_where_it_first_happens(observe: ModuleType) -> None:
    stacks = [("1", DUMPS), ("1", DUMPS, PARSE), ("2", DUMPS), ("2", DUMPS, PARSE)]

    assert shown(observe, *stacks) == ["outside → dumps", "json → parse"]


def test_a_picture_shows_again_what_leads_to_a_new_call(observe: ModuleType) -> None:
    stacks = [("1", DUMPS, PARSE), ("2", DUMPS, UNESCAPE)]

    assert shown(observe, *stacks) == ["outside → dumps", "json → parse", "outside → dumps", "json → unescape"]
    assert shown(observe, *(("1", *stack[1:]) for stack in stacks)) == ["outside → dumps", "json → parse", "json → unescape"]


def test_a_picture_follows_calls_into_plugins_however_deep_they_are(observe: ModuleType) -> None:
    stacks = [("1", DUMPS), ("1", DUMPS, PARSE, UNESCAPE), ("1", DUMPS, PARSE, SCORER)]

    assert shown(observe, *stacks, depth=1) == ["outside → dumps", "json → parse", "ast → QueueScorer.score"]


@pytest.mark.parametrize("name", ["_private", "Class._private", "run.<locals>.inner", "<lambda>", "JSONDecoder.__call__"])
def test_a_picture_leaves_out_details(observe: ModuleType, name: str) -> None:
    assert shown(observe, ("1", DUMPS), ("1", DUMPS, f"ast:{name}")) == ["outside → dumps"]


@pytest.mark.parametrize("path", sorted({link.path for link in LINKS} | {text for text in CODE if COMMITTED.fullmatch(text)} - MADE))
def test_contributors_are_sent_to_files_that_are_there(path: str) -> None:
    assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"


@pytest.mark.parametrize("link", [link for link in NAMED if link.path.endswith(".py")], ids=lambda link: link.name)
def test_contributors_find_each_name_in_the_file_it_leads_to(link: Link) -> None:
    assert link.name in _defined(ROOT / link.path), f"CONTRIBUTING.md says that {link.path} defines {link.name}"


@pytest.mark.parametrize("link", [link for link in NAMED if Path(link.path).suffix in (".toml", ".json")], ids=lambda link: link.name)
def test_contributors_find_each_word_in_the_file_it_leads_to(link: Link) -> None:
    assert link.name in (ROOT / link.path).read_text(encoding="utf-8")


@pytest.mark.parametrize("module", sorted(text for text in CODE if re.fullmatch(r"endpick(_builtin)?(\.\w+)+", text)))
def test_contributors_are_told_of_modules_that_are_there(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_contributors_are_told_of_every_step_with_a_test_that_shows_it() -> None:
    lists = re.split(r"^### ", TEXT.partition("## Where to begin")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]

    assert len(lists) == 7
    for each in lists:
        assert re.search(r"^Tests: .*\[`\w+`\]\(tests/", each, re.MULTILINE | re.DOTALL), each.partition("\n")[0]


def _defined(path: Path) -> set[str]:
    """What a module defines at its top level: classes, functions and values."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found
