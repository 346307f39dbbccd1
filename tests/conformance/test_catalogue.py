"""llm-d's whole table of plugin types: each is installed as what it is, or the compatibility page says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import yaml_files
from endpick.api import Stability
from endpick.host.discovery import discover
from endpick.host.loader import LoadedPlugin, load
from endpick.host.resolution import Reference

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/fixtures/catalogue"
CATALOGUE = yaml_files.load(FOLDER / "types.yaml")
EXPECTED_MISSING = set(yaml_files.load(FOLDER / "expected_missing.yaml") or ())
TYPES = {row["type"] for row in CATALOGUE}
INSTALLED = {candidate.type: candidate for candidate in discover() if candidate.is_builtin}
PRESENT = [row for row in CATALOGUE if row["type"] in INSTALLED]


def told_why_not() -> set[str]:
    """The types that the compatibility page names as not there."""
    page = (ROOT / "docs/explanation/compatibility.md").read_text()
    section = page.split("\n## What endpick does not have\n")[1].split("\n## ")[0]
    text, _, generated = section.partition("<!-- Names of llm-d")
    rows = re.findall(r"^\| type \| `([a-z0-9-]+)` \| (?:main|branch|its tests) ", generated, re.MULTILINE)
    return {*re.findall(r"`([a-z0-9-]+)`", text), *rows} & TYPES


def loaded(plugin_type: str) -> LoadedPlugin:
    plugin = load(INSTALLED[plugin_type], Reference(plugin_type), ()).loaded
    assert plugin is not None
    return plugin


def test_every_type_is_installed_or_explained():
    assert TYPES - INSTALLED.keys() - EXPECTED_MISSING - told_why_not() == set()


def test_no_type_is_waited_for_that_is_installed_or_unknown():
    assert EXPECTED_MISSING & INSTALLED.keys() == set(), "take these out of tests/fixtures/catalogue/expected_missing.yaml"
    assert set() == EXPECTED_MISSING - TYPES


def test_the_compatibility_page_misses_no_type_that_is_installed():
    assert told_why_not() & INSTALLED.keys() == set()


def test_no_type_stands_in_the_catalogue_twice():
    assert len(TYPES) == len(CATALOGUE)


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: row["type"])
def test_a_type_is_of_the_kinds_it_is_in_llm_d(row):
    assert set(row["kinds"]) <= {kind.kind for kind in loaded(row["type"]).kinds}


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: row["type"])
def test_a_type_promises_what_it_promises_in_llm_d(row):
    plugin = loaded(row["type"])
    if row["stability"] == Stability.DEPRECATED and plugin.type != row["type"]:
        return  # a former name, of which planning tells the present one
    assert plugin.plugin.stability == row["stability"]
