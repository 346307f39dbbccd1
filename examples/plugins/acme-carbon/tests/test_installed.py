"""Tests of the installed package: discovery, example configuration and README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def endpick(*arguments: str) -> str:
    """The output of a successful `endpick` command."""
    command = [sys.executable, "-m", "endpick", *arguments]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_plugin_is_visible() -> None:
    listed = {one["type"]: one for one in json.loads(endpick("list", "--format", "json"))["plugins"]}

    plugin = listed["acme.carbon-scorer"]
    assert plugin["status"] == "ok"
    assert plugin["distribution"] == "acme-carbon"
    assert listed["acme.carbon-source"]["status"] == "ok"
    assert listed["acme.carbon-collector"]["status"] == "ok"


def test_example_configuration_is_valid() -> None:
    endpick("validate", "examples/config.yaml")


@pytest.mark.parametrize("plugin_type", ["acme.carbon-scorer", "acme.carbon-source"])
def test_readme_has_the_generated_parameter_table(plugin_type: str) -> None:
    table = endpick("describe", plugin_type, "--format", "markdown")

    assert table in (PROJECT / "README.md").read_text(), f"put this into README.md:\n\n{table}"
