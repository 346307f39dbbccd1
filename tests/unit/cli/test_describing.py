"""Descriptions of parameters in `describe` and in the reference."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from click.testing import CliRunner
from pydantic import ConfigDict, Field

from endpick.api import Duration, Parameters
from endpick.cli.describe import bounds_of, command, example_from, parameter_tables, type_of
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference

ROOT = Path(__file__).parents[3]
BUILT_IN = [candidate for candidate in discover() if candidate.is_builtin]


class Shade(Enum):
    """An enumeration."""

    LIGHT = "light"
    DARK = "dark"


class Block(Parameters):
    """A block."""

    word: str
    count: Annotated[int, Field(ge=3)]


class Everything(Parameters):
    """Every form of a parameter."""

    block: Block
    blocks: Annotated[list[Block], Field(min_length=1)]
    shade: Shade
    choice: Literal["a", "b"]
    share: Annotated[float, Field(gt=0, lt=1, examples=[0.5])]
    name: Annotated[str, Field(min_length=1, max_length=9, pattern="^/", examples=["/x"])]
    maybe: Annotated[int | None, Field(ge=0, le=7)] = None
    wait: Duration = 0.05
    flag: bool = True


class OwnExample(Parameters):
    """The author knows better."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"word": "sun"}]})
    word: str


def test_examples_have_the_required_parameters():
    made = example_from(Everything.model_json_schema())
    assert made == {
        "block": {"word": "example", "count": 3},
        "blocks": [{"word": "example", "count": 3}],
        "shade": "light",
        "choice": "a",
        "share": 0.5,
        "name": "/x",
    }
    Everything.model_validate(made)
    assert example_from(OwnExample.model_json_schema()) == {"word": "sun"}


def test_types_and_bounds_in_words():
    schema = Everything.model_json_schema()
    properties = schema["properties"]
    assert {name: type_of(one) for name, one in properties.items()} == {
        "block": "Block",
        "blocks": "list of Block",
        "shade": "Shade",
        "choice": '"a" or "b"',
        "share": "number",
        "name": "string",
        "maybe": "integer",
        "wait": "duration",
        "flag": "boolean",
    }
    assert {name: ", ".join(bounds_of(one)) for name, one in properties.items() if list(bounds_of(one))} == {
        "blocks": "not empty",
        "share": "more than 0, less than 1",
        "name": "at most 9 characters, matches ^/, not empty",
        "maybe": "0 or more, at most 7",
    }


def test_reference_pages_match_describe():
    for candidate in BUILT_IN[::8]:  # `make check` compares every page with its plugin
        check_page(candidate)


def check_page(candidate):
    loaded = load(candidate, Reference(candidate.type), ()).loaded
    if loaded.type != candidate.type:
        return  # a former name has no page of its own
    page = (ROOT / "docs/reference/plugins" / f"{candidate.type}.md").read_text()
    told = CliRunner(env={"COLUMNS": "500"}).invoke(command, [candidate.type]).stdout
    for table in parameter_tables(loaded):
        assert f"{table.name}: {table.description}" in told or not table.name
        for row in table.rows:
            assert row.meaning in told
            assert row.bounds in told
    for key in (*loaded.plugin.consumes, *loaded.plugin.consumes_optional, *loaded.plugin.produces):
        assert f"`{key.name}`" in page
        assert key.name in told
    assert loaded.summary in page
    (entry,) = re.findall(r"EXAMPLE\nplugins:\n(.*)", told, re.DOTALL)
    assert entry in page
    assert f"<!-- yaml: example {candidate.type} -->" in page, (
        "no configuration with it was found: give its parameters model an example in `json_schema_extra`, or its kind a place in "
        "tools/docs_reference/examples.py"
    )


def test_every_reference_page_has_a_type():
    pages = {page.stem for page in (ROOT / "docs/reference/plugins").glob("*.md")}
    assert pages <= {candidate.type for candidate in discover() if candidate.distribution.startswith("endpick")}
