"""Tests of the installed package: discovery, example configuration and README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def endpick(*arguments: str) -> str:
    """The output of a successful `endpick` command."""
    command = [sys.executable, "-m", "endpick", *arguments]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_plugin_is_visible() -> None:
    listed = {one["type"]: one for one in json.loads(endpick("list", "--format", "json"))["plugins"]}

    plugin = listed["{{ cookiecutter.plugin_type }}"]
    assert plugin["status"] == "ok"
    assert plugin["distribution"] == "{{ cookiecutter.distribution }}"
{% if cookiecutter.__collects %}
    assert listed["{{ cookiecutter.__collector_type }}"]["status"] == "ok"
{% endif %}


def test_example_configuration_is_valid() -> None:
    endpick("validate", "examples/config.yaml")


def test_readme_has_the_generated_parameter_table() -> None:
    table = endpick("describe", "{{ cookiecutter.plugin_type }}", "--format", "markdown")

    assert table in (PROJECT / "README.md").read_text(), f"put this into README.md:\n\n{table}"
