"""Every YAML block in the pages, and every configuration under examples/, is what the text around it claims."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from docs.page_plugins import distribution_of
from docs.pages import ROOT, Block, all_blocks
from docs.test_console_blocks import assert_parses
from endpick.cli.schema import config_schema
from endpick.config import load_config
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick_builtin.discovery.endpoint_file import read_endpoint_file

BLOCKS = all_blocks("yaml")
EXAMPLES = sorted((ROOT / "examples" / "configs").glob("*.yaml"))


@pytest.fixture(scope="session")
def editor_accepts() -> Callable[[str], bool]:
    """Whether an editor that uses endpick's schema would accept a configuration."""
    validator = Draft7Validator(config_schema(discover()))
    return lambda text: validator.is_valid(parse(text)[0])


@pytest.fixture
def page_project(make_distribution) -> Callable[[Path], Path]:
    """The plugins of a page as an installed distribution."""
    return lambda page: distribution_of(page, make_distribution)


def parse(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def diagnostics_of(text: str) -> tuple[Diagnostic, ...]:
    return make_plan(load_config(text=text), discover()).diagnostics


def codes_of(text: str) -> list[str]:
    return [diagnostic.code.name for diagnostic in diagnostics_of(text)]


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.mark], ids=lambda block: block.name)
def test_a_configuration_is_accepted_by_endpick_and_by_editors(block: Block, editor_accepts):
    assert codes_of(block.text) == []
    assert editor_accepts(block.text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_by_endpick_and_by_editors(path: Path, editor_accepts):
    text = path.read_text()
    assert codes_of(text) == []
    assert editor_accepts(text)
    assert text.startswith("# yaml-language-server: $schema=../../schemas/config.v1.json\n")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark], ids=lambda block: block.name)
def test_a_marked_block_is_what_its_mark_says(block: Block, run_cli, fixture_project, page_project):
    word, _, rest = block.mark.partition(" ")
    match word:
        case "refused":
            errors = [diagnostic.code.name for diagnostic in diagnostics_of(block.text) if diagnostic.is_error]
            assert errors == rest.split()
        case "warned":
            assert codes_of(block.text) == rest.split()
        case "endpoints":
            contents = read_endpoint_file(block.text.encode())
            assert contents.endpoints
            assert (contents.mistakes, contents.remarks) == ((), ())
        case "with":
            project = page_project(block.page) if rest == "page" else fixture_project(rest)
            pool = () if "discovery:" in block.text else ("--endpoints", "pool.yaml")
            result = run_cli("validate", *pool, "--strict", "-", path=[project], text=block.text)
            assert result.exit_code == 0, result.stderr
        case "part":
            whole = (ROOT / rest.removeprefix("of ")).read_text()
            assert any(block.text == textwrap.dedent(piece) for piece in pieces(whole, block.text.count("\n")))
        case "kubernetes":
            for manifest in parse(block.text):
                check_manifest(manifest)
        case "example":
            outcome = make_plan(load_config(text=block.text), discover())
            assert outcome.plan is not None, [diagnostic.message for diagnostic in outcome.diagnostics if diagnostic.is_error]
            assert rest in {planned.loaded.type for planned in outcome.plan.instances}
        case "excerpt":
            assert parse(block.text)
        case "mistake":
            assert block.page.name == "diagnostics.md"  # generated from the pages of `endpick explain`, which have tests of their own
        case _:
            pytest.fail(f"no such mark: {block.mark}")


def pieces(text: str, length: int) -> list[str]:
    """Every run of so many lines."""
    lines = text.splitlines(keepends=True)
    return ["".join(lines[start : start + length]) for start in range(len(lines) - length + 1)]


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """What a manifest has to do with endpick."""
    assert {"apiVersion", "kind", "metadata"} <= manifest.keys()
    for name, text in manifest.get("data", {}).items():
        if "endpoints" in name:
            assert read_endpoint_file(text.encode()).mistakes == ()
        else:
            assert codes_of(text) == []
    template = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for container in template.get("containers", ()):
        command = [*container.get("command", ()), *container.get("args", ())]
        if command[:1] == ["endpick"]:
            assert_parses(command[1:])
