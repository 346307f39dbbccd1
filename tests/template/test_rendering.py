"""What files the template gives for each kind, whatever the names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from endpick.cli.new import KINDS, MAX_STEM_LENGTH, MAX_TYPE_LENGTH, draft, refuse_type, write

ROOT = Path(__file__).parents[2]
MODULES = {
    "filter": {"filter.py"},
    "scorer": {"scorer.py"},
    "picker": {"picker.py"},
    "profile-handler": {"handler.py"},
    "data-source": {"source.py", "collector.py", "keys.py"},
    "pool-source": {"source.py", "collector.py", "keys.py"},
    "data-producer": {"producer.py", "keys.py"},
    "fairness-policy": {"policy.py"},
    "ordering-policy": {"policy.py"},
    "usage-limit-policy": {"policy.py"},
    "eviction-filter": {"filter.py"},
    "eviction-ordering-policy": {"policy.py"},
}
COMMON = {
    ".github/dependabot.yml",
    ".github/workflows/publish.yml",
    ".github/workflows/test.yml",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "examples/config.yaml",
    "examples/endpoints.yaml",
    "pyproject.toml",
    "tests/test_conformance.py",
    "tests/test_installed.py",
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def project(kind, tmp_path_factory):
    """Only read here."""
    return write(draft(f"acme.sample-{kind}", kind), tmp_path_factory.mktemp(kind))


def files_of(project: Path) -> dict[str, Path]:
    return {str(file.relative_to(project)): file for file in project.rglob("*") if file.is_file()}


def test_project_has_exactly_these_files(kind, project):
    package = f"src/acme_sample_{kind.replace('-', '_')}"
    own = {f"{package}/{module}" for module in {"__init__.py", "py.typed"} | MODULES[kind]}
    tests = {f"tests/test_{min(MODULES[kind] - {'keys.py', 'collector.py'})}"}

    assert set(files_of(project)) == COMMON | own | tests


def test_no_marker_of_the_template_is_left(project):
    for name, file in files_of(project).items():
        text = file.read_text()
        assert "cookiecutter" not in name + text, name
        assert not re.search(r"\{%|%\}|(?<!\$)\{\{|\{#", text), name
        assert text == "" or text.endswith("\n"), name
        assert not text.endswith("\n\n"), name


def test_every_document_can_be_read(project):
    yaml = YAML(typ="safe", pure=True)
    for name, file in files_of(project).items():
        if file.suffix in (".yml", ".yaml"):
            assert yaml.load(file), name
        if file.suffix == ".py":
            ast.parse(file.read_text(), name)


def test_endpick_range_is_this_version_to_the_next_major(project):
    metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]

    assert "endpick>=0.2,<1" in metadata["dependencies"]


def test_example_configuration_names_its_schema(project):
    first, second, *_ = (project / "examples" / "config.yaml").read_text().splitlines()

    assert first == "# yaml-language-server: $schema=./endpick.schema.json"
    assert second == "apiVersion: endpick/v1alpha1"
    assert "examples/endpick.schema.json" in (project / ".gitignore").read_text().splitlines()


def test_actions_are_pinned_and_have_least_permissions(project):
    yaml = YAML(typ="safe", pure=True)
    for workflow in sorted((project / ".github" / "workflows").iterdir()):
        for line in re.findall(r"uses: (.*)", workflow.read_text()):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
        document = yaml.load(workflow)
        assert document["permissions"] == {"contents": "read"}
        granted = {name: job["permissions"] for name, job in document["jobs"].items() if "permissions" in job}
        assert granted == ({"publish": {"id-token": "write"}} if workflow.stem == "publish" else {})


def longest_type(kind: str) -> str:
    shortest_rest = len(f"vv.-{kind}")
    name = f"{'abcdefgh-' * 3}"[: min(MAX_STEM_LENGTH, MAX_TYPE_LENGTH - shortest_rest)] + f"-{kind}"
    return f"{'v' * (MAX_TYPE_LENGTH - len(name) - 1)}.{name}"


@pytest.mark.parametrize("type_for", [lambda kind: f"v.x-{kind}", longest_type], ids=["shortest", "longest"])
def test_style_is_right_whatever_the_length_of_the_names(kind, type_for, tmp_path):
    plugin_type = type_for(kind)
    project = write(draft(plugin_type, kind), tmp_path)

    assert refuse_type(plugin_type) is None
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache"]
        result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


def test_licence_is_our_own():
    assert (ROOT / "plugin_template" / "{{cookiecutter.distribution}}" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
