"""An editor with the published schema and `endpick validate` agree on every document that either can judge."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from endpick.cli.schema import builtin, config_schema, parameter_schemas
from endpick.config import load_config
from endpick.diagnostics import Code, Diagnostic, render_github, render_json, render_text
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan

ROOT = Path(__file__).parents[3]
DEFAULT = ROOT / "core" / "endpick" / "config" / "default.yaml"
EXAMPLES = [DEFAULT, *sorted((ROOT / "examples" / "configs").glob("*.yaml"))]
"""The published schema knows the built-in types; the examples of plugins are judged where those are installed."""

GOOD: dict[str, Any] = {
    "apiVersion": "endpick/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "load-aware-scorer", "name": "load", "parameters": {"threshold": 64}, "onFault": "FailClose"},
        {"type": "prefix-cache-scorer"},
        {"type": "label-selector-filter", "parameters": {"matchLabels": {"tier": "gold"}}},
        {"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 2}},
        {"type": "file-discovery", "parameters": {"path": "endpoints.yaml", "watchFile": True}},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "label-selector-filter"},
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "load", "weight": 0.5},
                {"pluginRef": "prefix-cache-scorer"},
                {"pluginRef": "max-score-picker"},
            ],
        }
    ],
    "dataLayer": {"discovery": {"endpoints": {"pluginRef": "file-discovery"}}},
    "featureGates": ["haPopulateNonLeaderDatastore=false"],
}

OTHER_VALUES: tuple[Any, ...] = (None, True, 0, -3, 1.5, "", "text", "queue-scorer", [], ["a"], {}, {"a": 1}, {"type": "queue-scorer"})


@functools.cache
def editor() -> Draft7Validator:
    return Draft7Validator(config_schema(builtin(discover())))


def diagnose(text: str) -> tuple[Diagnostic, ...]:
    return make_plan(load_config(text=text, name="c.yaml"), discover()).diagnostics


def seen_by_an_editor(diagnostic: Diagnostic) -> bool:
    """An editor knows the shape of the document, the types and their parameters; references and data are beyond a schema."""
    return diagnostic.is_error and (diagnostic.code.family in (1, 2, 4) or diagnostic.code is Code.E0301)


def paths(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from paths(child, (*path, key))


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """The good document with one node dropped, renamed, replaced, or doubled."""
    document = deepcopy(GOOD)
    *way, last = draw(st.sampled_from(list(paths(GOOD))))
    parent: Any = document
    for segment in way:
        parent = parent[segment]
    match draw(st.sampled_from(["drop", "rename", "retype", "double"])):
        case "drop":
            del parent[last]
        case "rename" if isinstance(last, str):
            parent[draw(st.sampled_from([f"{last}x", last.upper(), "name", "parameters"]))] = parent.pop(last)
        case "double" if isinstance(parent, list):
            parent.insert(last, deepcopy(parent[last]))
        case _:
            parent[last] = draw(st.sampled_from(OTHER_VALUES))
    return document


@settings(deadline=None, max_examples=15)
@given(mutated())
@example(GOOD)
def test_editor_and_validate_agree_on_a_mistake(document: dict[str, Any]) -> None:
    found = diagnose(json.dumps(document))

    told = [(one.code.name, one.message) for one in found if seen_by_an_editor(one)]
    shown = [f"{error.json_path}: {error.message}" for error in editor().iter_errors(document)]
    assert bool(told) == bool(shown), f"validate: {told}, editor: {shown}"


@settings(deadline=None, max_examples=15)
@given(mutated())
def test_any_mistake_has_a_place_in_every_format(document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1)
    found = diagnose(text)

    assert all(one.span is not None and 1 <= one.span.line <= text.count("\n") + 1 for one in found)
    assert json.loads(render_json(found))["errors"] == sum(one.is_error for one in found)
    assert bool(render_text(found, {"c.yaml": text})) == bool(render_github(found)) == bool(found)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_is_fine_with_both(path: Path) -> None:
    document = YAML(typ="safe", pure=True).load(path)

    assert [error.message for error in editor().iter_errors(document)] == []
    assert [one.message for one in diagnose(path.read_text()) if seen_by_an_editor(one)] == []


@pytest.mark.long
def test_the_committed_schemas_are_fresh() -> None:
    """`make schemas` writes them."""
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_schemas.py", "--check"], capture_output=True, text=True, check=False, timeout=60
    )

    assert (result.stdout, result.returncode) == ("", 0), result.stderr


def test_every_parameter_of_every_built_in_type_is_described() -> None:
    for plugin_type, schema in parameter_schemas(builtin(discover())).items():
        for name, field in schema["properties"].items():
            assert field.get("description"), f"{plugin_type}: {name}"
