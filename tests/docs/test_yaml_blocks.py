"""Checks every YAML block of the pages, and every configuration under examples/, as its mark demands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from docs.page_plugins import distribution_of
from docs.pages import ROOT, Block, all_blocks, named
from docs.test_console_blocks import parse_problem
from endpick.cli.schema import config_schema
from endpick.config import load_config
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick_builtin.endpoint_file import read_endpoint_file

BLOCKS = all_blocks("yaml")
EXAMPLES = sorted((ROOT / "examples" / "configs").glob("*.yaml"))
HEADER = "# yaml-language-server: $schema=../../schemas/config.v1.json\n"


def marked(word: str) -> list[tuple[Block, str]]:
    """The blocks with this first word in their mark, and the rest of the mark."""
    found = ((block, *block.mark.partition(" ")) for block in BLOCKS)
    return [(block, rest) for block, first, _, rest in found if first == word]


def parse(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def diagnostics_of(text: str) -> tuple[Diagnostic, ...]:
    return make_plan(load_config(text=text), discover()).diagnostics


def codes_of(text: str) -> list[str]:
    return [diagnostic.code.name for diagnostic in diagnostics_of(text)]


def errors_of(text: str) -> list[str]:
    return [diagnostic.code.name for diagnostic in diagnostics_of(text) if diagnostic.is_error]


def test_every_mark_is_known():
    known = {"", "refused", "warned", "endpoints", "with", "part", "kubernetes", "example", "excerpt"}
    assert [f"{block.name}: {block.mark}" for block in BLOCKS if block.mark.partition(" ")[0] not in known] == []


def test_configurations_are_accepted_by_endpick_and_editors():
    editor = Draft7Validator(config_schema(discover()))
    texts = {block.name: block.text for block in BLOCKS if not block.mark} | {named(path): path.read_text() for path in EXAMPLES}
    assert {name: codes for name, text in texts.items() if (codes := codes_of(text))} == {}
    assert [name for name, text in texts.items() if not editor.is_valid(parse(text)[0])] == []


def test_examples_name_their_schema():
    assert [path.name for path in EXAMPLES if not path.read_text().startswith(HEADER)] == []


def test_refused_configurations_have_exactly_their_errors():
    assert {block.name: errors for block, rest in marked("refused") if (errors := errors_of(block.text)) != rest.split()} == {}


def test_warned_configurations_have_exactly_their_warnings():
    assert {block.name: codes for block, rest in marked("warned") if (codes := codes_of(block.text)) != rest.split()} == {}


def test_endpoint_files_are_valid():
    for block, _ in marked("endpoints"):
        contents = read_endpoint_file(block.text.encode())
        assert contents.endpoints, block.name
        assert (contents.mistakes, contents.remarks) == ((), ()), block.name


@pytest.mark.parametrize("block", [block for block, _ in marked("with")], ids=lambda block: block.name)
def test_configurations_for_other_plugins_are_accepted(block: Block, run_cli, fixture_project, make_distribution: Callable[..., Path]):
    wanted = block.mark.partition(" ")[2]
    project = distribution_of(block.page, make_distribution) if wanted == "page" else fixture_project(wanted)
    pool = () if "discovery:" in block.text else ("--endpoints", "pool.yaml")
    result = run_cli("validate", *pool, "--strict", "-", path=[project], text=block.text)
    assert result.exit_code == 0, result.stderr


def test_parts_of_files_are_in_those_files():
    for block, rest in marked("part"):
        lines = (ROOT / rest.removeprefix("of ")).read_text().splitlines(keepends=True)
        length = block.text.count("\n")
        parts = (textwrap.dedent("".join(lines[start : start + length])) for start in range(len(lines) - length + 1))
        assert block.text in parts, block.name


def test_manifests_contain_valid_configurations_and_commands():
    manifests = [manifest for block, _ in marked("kubernetes") for manifest in parse(block.text)]
    assert [problem for manifest in manifests for problem in problems_of(manifest)] == []


def problems_of(manifest: Mapping[str, Any]) -> list[object]:
    """Mistakes in the configurations, endpoint files and endpick commands of a manifest."""
    problems: list[object] = sorted({"apiVersion", "kind", "metadata"} - manifest.keys())
    for name, text in manifest.get("data", {}).items():
        problems += read_endpoint_file(text.encode()).mistakes if "endpoints" in name else codes_of(text)
    template = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for container in template.get("containers", ()):
        command = [*container.get("command", ()), *container.get("args", ())]
        if command[:1] == ["endpick"] and (problem := parse_problem(command[1:])):
            problems.append(problem)
    return problems


def test_examples_of_plugins_use_them_without_errors():
    problems, installed = [], discover()
    for block, plugin_type in marked("example"):
        outcome = make_plan(load_config(text=block.text), installed)
        types = {planned.loaded.type for planned in outcome.plan.instances} if outcome.plan else set()
        problems += [] if plugin_type in types else [block.name]
    assert problems == []


def test_excerpts_are_yaml():
    assert [block.name for block, _ in marked("excerpt") if not parse(block.text)] == []
