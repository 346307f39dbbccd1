"""`endpick schema --installed` knows every installed plugin: an editor that uses it judges as `endpick validate` does."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[3] / "examples" / "plugins"
TYPES = {"acme-carbon": "acme.carbon-scorer", "acme-cost": "acme.cost-picker", "acme-tenant": "acme.tenant-filter"}


@pytest.fixture
def installed(make_distribution):
    """`installed("acme-cost")`: the import path of an example's sources and of metadata that leads to them."""

    def install(name: str) -> list[Path]:
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
        entry_points = project["entry-points"]["endpick.plugins.v1"]
        return [make_distribution(name, entry_points, version=project["version"], modules={}), EXAMPLES / name / "src"]

    return install


def entry_of(document: dict[str, Any], plugin_type: str) -> dict[str, Any]:
    (entry,) = [one for one in document["plugins"] if one["type"] == plugin_type]
    return entry


def misspell_a_parameter(document: dict[str, Any], plugin_type: str) -> None:
    entry_of(document, plugin_type).setdefault("parameters", {})["no-such-parameter"] = 1


def misspell_the_type(document: dict[str, Any], plugin_type: str) -> None:
    entry_of(document, plugin_type)["type"] += "s"


def retype_the_parameters(document: dict[str, Any], plugin_type: str) -> None:
    entry_of(document, plugin_type)["parameters"] = {name: [] for name in entry_of(document, plugin_type).get("parameters", {"x": 1})}


@pytest.mark.parametrize("name", TYPES)
def test_editor_and_validate_agree_on_examples(installed, run_cli, name):
    path = installed(name)
    shown = run_cli("schema", "--installed", path=path)
    assert shown.exit_code == 0, shown.stderr
    schema = json.loads(shown.stdout)
    Draft7Validator.check_schema(schema)
    editor = Draft7Validator(schema)
    config = (EXAMPLES / name / "examples" / "config.yaml").read_text()

    def verdicts(spoil=None) -> tuple[bool, bool]:
        document = YAML(typ="safe", pure=True).load(config)
        if spoil is not None:
            spoil(document, TYPES[name])
        text = config if spoil is None else json.dumps(document)
        return editor.is_valid(document), run_cli(
            "validate", "--endpoints", "pool.yaml", "-", path=path, text=text, cwd=EXAMPLES / name
        ).exit_code == 0

    assert verdicts() == (True, True)
    for spoil in (misspell_a_parameter, misspell_the_type, retype_the_parameters):
        assert verdicts(spoil) == (False, False), spoil.__name__


def test_editor_completes_third_party_plugins(installed, run_cli):
    path = installed("acme-cost")

    with_it, without = (json.loads(run_cli("schema", *options, path=path).stdout) for options in (["--installed"], []))

    assert "acme.cost-picker" in types_offered(with_it)
    assert types_offered(with_it) >= types_offered(without) >= {"queue-scorer", "max-score-picker"}
    assert "acme.cost-picker" not in types_offered(without)
    assert {"label", "tolerance"} <= with_it["definitions"]["parameters-of-acme.cost-picker"]["properties"].keys()


def types_offered(schema: dict[str, Any]) -> set[str]:
    return set(schema["definitions"]["PluginSpec"]["properties"]["type"]["enum"])
