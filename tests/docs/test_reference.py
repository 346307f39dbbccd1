"""The reference teaches every public name, method and property of `endpick.api` and `endpick.testing`."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import endpick.api
import endpick.testing
from docs.pages import ROOT
from endpick.api import DataKey, Picker

PACKAGES = (endpick.api, endpick.testing)
FOLDER = ROOT / "docs" / "reference"
MEMBERS = (classmethod, staticmethod, property, cached_property)
FEWEST_WORDS = 5


def teaches(text: str) -> bool:
    return len(text.split()) >= FEWEST_WORDS and bool(re.search(r"\.(\s|$)", text))


def documented(package: ModuleType) -> Iterator[tuple[str, str]]:
    """The public names, their members as `Class.member`, and the docstring of each."""
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, DataKey):
            yield name, value.doc
        elif isinstance(value, type) or inspect.isfunction(value):
            yield name, inspect.cleandoc(value.__doc__ or "")
        else:
            yield name, attributes(package).get(name, "")
        if isinstance(value, type):
            yield from ((f"{name}.{member}", doc) for member, doc in members(value))
            yield from ((key, doc) for key, doc in attributes(package).items() if key.startswith(f"{name}."))


def members(cls: type) -> Iterator[tuple[str, str]]:
    for base in cls.__mro__:
        for name, member in vars(base).items() if base.__module__.startswith("endpick.") else ():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, MEMBERS)):
                yield name, inspect.getdoc(getattr(cls, name)) or ""


@cache
def attributes(package: ModuleType) -> dict[str, str]:
    """The strings behind constants and fields, which exist in the source only."""
    files = (Path(package.__path__[0], f"{module.name}.py") for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    return dict(each for file in files for each in _strings(ast.parse(file.read_text(encoding="utf-8")).body))


def _strings(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    for node, after in pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield prefix + target.id, inspect.cleandoc(str(after.value.value))
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _strings(node.body, f"{node.name}.")


def undocumented() -> list[str]:
    return [name for package in PACKAGES for name, doc in documented(package) if not teaches(doc)]


def pages() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md")))


def missing(text: str) -> list[str]:
    """Names without their whole docstring under their heading."""
    sections: dict[str, str] = {}
    for title, body in re.findall(r"(?ms)^### `(\w+)`$(.*?)(?=^##? |^### |\Z)", text):
        sections[title] = sections.get(title, "") + f"\n#### `{title}`\n{body}"
    return [name for package in PACKAGES for name, doc in documented(package) if not _is_shown(package, name, doc, sections, text)]


def _is_shown(package: ModuleType, name: str, doc: str, sections: dict[str, str], text: str) -> bool:
    owner, _, member = name.partition(".")
    value = getattr(package, owner)
    if isinstance(value, DataKey):
        return bool(re.search(rf"\| `{owner}` \|.*{re.escape(doc)}", text))
    places = [sections.get(base.__name__, "") for base in value.__mro__] if isinstance(value, type) else [sections.get(owner, "")]
    heading = f"- `{member}" if name in attributes(package) and member else f"\n#### `{member or owner}`\n"
    return any(heading in place and words(doc) in words(place) for place in places)


def words(text: str) -> str:
    """Without the marks that turn the sections of a docstring into Markdown."""
    return " ".join(re.sub(r"[`*:-]", " ", text.replace("Args:", "Arguments:")).split())


def test_every_public_name_has_a_docstring_that_teaches():
    assert undocumented() == []


def test_the_reference_has_every_docstring_in_full():
    assert missing(pages()) == []


@pytest.mark.parametrize("doc", [None, "Choose one.", "Choose at least one endpoint, best first"])
def test_a_docstring_without_a_sentence_is_found(monkeypatch: pytest.MonkeyPatch, doc: str | None):
    monkeypatch.setattr(Picker.pick, "__doc__", doc)
    assert undocumented() == ["Picker.pick"]


@pytest.mark.parametrize(
    ("kept", "lost", "names"),
    [
        ("", "#### `pick`\n", ["Picker.pick"]),
        ("", "### `make_pool`\n", ["make_pool"]),
        ("", "such as `scored.take(positions)`.", ["Picker.pick"]),
        ("", "False if the choice ignores totals", ["Picker.uses_scores"]),
        ("| `OTHER` |", "| `KV_CACHE_USAGE` |", ["KV_CACHE_USAGE"]),
    ],
)
def test_a_gap_in_the_reference_is_found(kept: str, lost: str, names: list[str]):
    text = pages()
    assert lost in text
    assert missing(text.replace(lost, kept)) == names
