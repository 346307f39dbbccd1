"""A plugin's distribution is upgraded in the environment of a serving endpick: the old code goes on, and endpick says so."""

from __future__ import annotations

import asyncio
import shutil
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from installing import make_venv, pip_install
from integration.plugins.serving import serving

PROJECT = Path(__file__).parents[2] / "fixtures" / "plugins" / "good-scorers"
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: static-discovery, parameters: {endpoints: [{name: a, address: 127.0.0.1, port: 1}]}}
- {type: acme.latency}
dataLayer: {discovery: {endpoints: {pluginRef: static-discovery}}}
"""


def release(version: str, folder: Path) -> Path:
    project = shutil.copytree(PROJECT, folder / version)
    metadata = project / "pyproject.toml"
    metadata.write_text(metadata.read_text().replace('version = "1.0"', f'version = "{version}"'))
    return project


@pytest.mark.long
@pytest.mark.asyncio
async def test_an_upgrade_without_a_restart_is_told(tmp_path):
    python = make_venv(tmp_path / "venv", [Path(sysconfig.get_path("purelib"))])
    pip_install(python, release("1.0", tmp_path))
    (tmp_path / "config.yaml").write_text(CONFIG)

    async with serving(tmp_path, python=python) as picker:
        assert await picker.samples("endpick_plugin_drift") == {
            (("distribution", "endpick"),): 0,
            (("distribution", "good-scorers"),): 0,
        }
        pip_install(python, release("1.1", tmp_path), options=["--upgrade"])
        picker.reload()
        (warning,) = await picker.logged("good-scorers 1.1 is installed, but 1.0 serves; restart to run it")
        (event,) = await picker.logged("configuration unchanged")

        assert event["old_hash"] == event["new_hash"]
        assert (await picker.health())[1].splitlines() == ["ok", warning["event"]]
        asked = ["doctor", "--serving", f"http://127.0.0.1:{picker.metrics_port}"]
        assert str(warning["event"]) in (await asyncio.to_thread(CliRunner().invoke, main, asked)).output
        assert (await picker.samples("endpick_plugin_drift"))[("distribution", "good-scorers"),] == 1
        (version,) = [
            dict(labels)["version"] for labels in await picker.samples("endpick_plugin_info") if ("plugin_name", "acme.latency") in labels
        ]
        assert version == "1.0"
