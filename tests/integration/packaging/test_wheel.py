"""What is in the wheel, and what works from it."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
"""


def test_wheel_holds_its_import_packages_and_nothing_else(installation):
    names = zipfile.ZipFile(installation.wheel).namelist()

    packages = {"endpick", "endpick_builtin", "endpick_gateway", "endpick_lab", "endpick_migrate"}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert "endpick/py.typed" in names
    code = [name for name in names if not name.startswith("endpick/_data/")]
    assert not [name for name in code if re.search(r"(^|/)(tests?|__pycache__)/", name)]


def test_core_is_no_import_name(installation, tmp_path):
    result = installation.run(
        "-c", "import importlib.util as u; print(u.find_spec('core'), u.find_spec('endpick') is not None)", cwd=tmp_path
    )

    assert result.stdout.split() == ["None", "True"]


def test_builtin_plugins_are_found_from_the_wheel(installation, tmp_path):
    result = installation.run("-m", "endpick", "list", cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    assert "max-score-picker" in result.stdout


@pytest.mark.parametrize("verb", ["validate", "serve"])
def test_host_without_entry_points_says_so(installation, tmp_path, verb):
    """The built-in plugins enjoy no privilege: their code is there, and without entry points endpick does not find it."""
    packages = tmp_path / "packages"
    shutil.copytree(installation.packages, packages)
    (metadata,) = packages.glob("endpick-*.dist-info")
    (metadata / "entry_points.txt").write_text("[console_scripts]\nendpick = endpick.cli.main:main\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    stripped = type(installation)(installation.wheel, packages, installation.dependencies)

    listed = stripped.run("-m", "endpick", "list", cwd=tmp_path)
    judged = stripped.run("-m", "endpick", verb, "config.yaml", cwd=tmp_path)

    assert listed.returncode == 0
    assert "no plugin types are installed" in listed.stdout + listed.stderr
    assert judged.returncode == 4
    assert "no plugin types are installed" in judged.stderr + judged.stdout
    assert "config.yaml:4:9" in judged.stderr + judged.stdout


def test_nothing_in_endpick_names_the_builtin_package():
    core = Path(__file__).parents[3] / "core" / "endpick"

    assert [str(path.relative_to(core)) for path in core.rglob("*.py") if "endpick_builtin" in path.read_text()] == []


def test_wheel_holds_the_whole_template_of_new_projects(installation):
    template = Path(__file__).parents[3] / "plugin_template"
    wanted = {str(file.relative_to(template.parent)) for file in template.rglob("*") if file.is_file()}

    packed = [name for name in zipfile.ZipFile(installation.wheel).namelist() if name.startswith("endpick/_data/")]

    assert {name.removeprefix("endpick/_data/") for name in packed} == wanted
