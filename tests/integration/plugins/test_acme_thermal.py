"""A third-party package, installed by pip into a venv, works by being named in a configuration."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.long


def test_its_types_are_listed_with_kind_and_origin(run_cli, plugin_venv):
    listed = json.loads(run_cli("list", "--load", "--format", "json", python=plugin_venv).stdout)["plugins"]

    ours = {one["type"]: one for one in listed if one["distribution"] == "acme-thermal"}
    assert {name: one["kinds"] for name, one in ours.items()} == {
        "acme.cool-scorer": ["scorer"],
        "acme.temperature-collector": ["data-collector"],
    }
    assert {one["status"] for one in ours.values()} == {"ok"}


def test_naming_the_scorer_brings_its_collector_and_source(run_cli, plugin_venv, config_with):
    config = config_with("type: acme.cool-scorer\nparameters: {hotCelsius: 85}")

    result = run_cli("plan", config, "--format", "json", python=plugin_venv)
    plan = json.loads(result.stdout)

    assert result.exit_code == 0, result.stderr
    assert {"acme.cool-scorer", "acme.temperature-collector", "metrics-data-source"} <= {one["type"] for one in plan["instances"]}


def test_its_parameters_are_judged_like_everybody_elses(run_cli, plugin_venv, config_with):
    config = config_with("type: acme.cool-scorer\nparameters: {hotCelcius: 85, coolCelsius: 90}")

    result = run_cli("validate", config, python=plugin_venv)

    assert result.exit_code == 3
    assert "unknown parameter 'hotCelcius' for acme.cool-scorer" in result.stderr
    assert "help: did you mean 'hotCelsius'?" in result.stderr


def test_its_description_shows_parameters_data_and_origin(run_cli, plugin_venv):
    text = run_cli("describe", "acme.cool-scorer", python=plugin_venv).stdout
    facts = json.loads(run_cli("describe", "acme.cool-scorer", "--format", "json", python=plugin_venv).stdout)

    assert re.search(r"hotCelsius +number +90\.0 +Temperature that scores 0\.", text)
    assert "reads  acme.example/gpu-temperature  float" in text
    assert facts["distribution"] == "acme-thermal"
    assert facts["consumes"][0]["name"] == "acme.example/gpu-temperature"
    assert facts["parameters"]["additionalProperties"] is False


def test_its_example_is_a_valid_configuration(run_cli, plugin_venv, tmp_path):
    example = run_cli("describe", "acme.cool-scorer", "--example", python=plugin_venv).stdout
    config = tmp_path / "example.yaml"
    config.write_text("apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n" + example)

    assert run_cli("validate", config, "--endpoints", "pool.yaml", "--strict", python=plugin_venv).exit_code == 0
