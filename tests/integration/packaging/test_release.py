"""What a release rests on: one version in every place, and workflows that run what there is."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

import yaml_files
from endpick import __version__

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_distribution_and_the_chart_have_one_version():
    projects = [tomllib.loads(path.read_text())["project"] for path in (ROOT / "builtin_plugins").glob("*/pyproject.toml")]
    chart = yaml_files.load(ROOT / "deploy" / "helm" / "endpick" / "Chart.yaml")
    template = json.loads((ROOT / "plugin_template" / "cookiecutter.json").read_text())
    stated = [*(project["version"] for project in projects), chart["version"], chart["appVersion"], template["endpick_version"]]
    assert stated == [__version__] * 5
    assert all(f"endpick>={__version__.rpartition('.')[0]}" in project["dependencies"] for project in projects)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_what_there_is(path: Path):
    jobs = yaml_files.load(path)["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    for script in (re.match(r"\.ci/\w+", command) for command in commands):
        commands += [(ROOT / script[0]).read_text()] if script else []
    made = {target for command in commands for target in re.findall(r"^ *make ([a-z-]+)", command, re.MULTILINE)}
    assert made
    assert made <= TARGETS


def test_only_the_publishing_job_may_write():
    workflows = {path.stem: yaml_files.load(path) for path in WORKFLOWS}
    assert set(workflows) == {"ci", "nightly", "release"}
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in workflows.values())
    jobs = {name: job for workflow in workflows.values() for name, job in workflow["jobs"].items() if "permissions" in job}
    assert {name: job["permissions"] for name, job in jobs.items()} == {"publish": {"id-token": "write", "attestations": "write"}}


@pytest.mark.long
def test_release_check_refuses_an_sdist_that_lacks_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    release_check = importlib.import_module("release_check")
    project = shutil.copytree(ROOT / "builtin_plugins" / "kv_events", tmp_path / "project")
    files = release_check.build_and_compare(project, tmp_path / "complete")
    assert [file.name.endswith((".whl", ".tar.gz")) for file in files] == [True, True]
    with (project / "pyproject.toml").open("a") as metadata:
        metadata.write('[tool.hatch.build.targets.sdist]\nexclude = ["endpick_kv_events/plugins.py"]\n')
    with pytest.raises(SystemExit, match=r"different wheels: .*endpick_kv_events/plugins\.py"):
        release_check.build_and_compare(project, tmp_path / "incomplete")
