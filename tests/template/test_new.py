"""`endpick new`: what it prints, and what it refuses with which reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from endpick.cli.new import KINDS, NewOutput
from endpick.host.discovery import TYPE_PATTERN

TEMPLATE = Path(__file__).parents[2] / "plugin_template"


def message(result) -> str:
    """What is on standard error, in one line."""
    return re.sub(r"\s+", " ", result.stderr.replace("│", " "))


def test_it_names_the_project_and_the_next_three_commands(run_cli, tmp_path):
    result = run_cli("new", "short-queue", "--kind", "scorer", "--vendor", "acme")

    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout == (
        "made acme-short-queue: the scorer acme.short-queue\n"
        "\n"
        "  cd acme-short-queue\n"
        "  python -m pip install --editable '.[dev]'\n"
        "  python -m pytest\n"
        "\n"
        "Your idea goes into src/acme_short_queue/scorer.py.\n"
    )
    assert (tmp_path / "acme-short-queue" / "src" / "acme_short_queue" / "scorer.py").is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == ["acme-short-queue"]


def test_it_tells_programs_the_same(run_cli, tmp_path):
    result = run_cli("new", "acme.drive-time-source", "--kind", "data-source", "--output", "a/b", "--format", "json")
    facts = json.loads(result.stdout)

    NewOutput.model_validate(facts)
    assert facts["types"] == ["acme.drive-time-source", "acme.drive-time-collector"]
    assert facts["folder"] == "a/b/acme-drive-time-source"
    assert facts["next"][0] == "cd a/b/acme-drive-time-source"
    assert "src/acme_drive_time_source/collector.py" in facts["files"]
    assert all((tmp_path / facts["folder"] / file).is_file() for file in facts["files"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["Short_Queue"], "'Short_Queue' is not a plugin type: write lower-case letters and digits"),
        (["short queue"], "'short queue' is not a plugin type"),
        (["2-fast"], "'2-fast' is not a plugin type"),
        (["a/../b"], "'a/../b' is not a plugin type"),
        ([""], "'' is not a plugin type"),
        (["été"], "'été' is not a plugin type"),
        (["x", "--vendor", "Acme"], "'Acme.x' is not a plugin type"),
        (["acme.x", "--vendor", "acme"], "'acme.x' has a vendor already; leave out --vendor"),
        (["acme."], "'acme.' is not a plugin type"),
        (["acme..x"], "'acme..x' is not a plugin type"),
        (["acme.x-"], "'acme.x-' is not a plugin type"),
        (["acme.x_y"], "'acme.x_y' is not a plugin type"),
        (["acme.x;rm"], "'acme.x;rm' is not a plugin type"),
        (
            ["short-queue"],
            "'short-queue' has no vendor, which only endpick's own types lack; put yours first, as in",
        ),
        (["queue-scorer"], "as in acme.queue-scorer"),
        (["null"], "'null' has no vendor"),
        (["x" * 51, "--vendor", "acme"], "is longer than 50 characters; shorten it"),
        (["x" * 25, "--vendor", "acme"], "is longer than 24 characters, and classes will be named after it; shorten it"),
        (["x", "--vendor", "endpick"], "vendor 'endpick' is reserved for endpick itself"),
        (["acme.3d"], "'acme.3d' would define 3dScorer, which is not a Python name"),
        (["acme.per-endpoint"], "'acme.per-endpoint' would define PerEndpointScorer, which endpick.api defines already"),
        (["acme.test-latency"], "'acme.test-latency' would define TestLatencyScorer, which pytest takes for a test"),
    ],
)
def test_invalid_reserved_and_taken_names_are_refused(run_cli, tmp_path, arguments, reason):
    result = run_cli("new", *arguments, "--kind", "scorer")

    assert result.exit_code == 2
    assert reason in message(result)
    assert list(tmp_path.iterdir()) == []


def test_type_of_another_distribution_is_refused(run_cli, make_distribution):
    taken = make_distribution("good-scorers", {"acme.latency": "good:Latency"}, version="2.1")

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer", path=[taken])

    assert result.exit_code == 2
    assert "plugin type 'acme.latency' is taken: good-scorers 2.1 is installed and offers it" in message(result)


def test_collector_that_a_source_would_bring_is_refused_as_well(run_cli, make_distribution):
    taken = make_distribution("other", {"acme.latency-collector": "other:Collector"})

    result = run_cli("new", "latency-source", "--vendor", "acme", "--kind", "data-source", path=[taken])

    assert "plugin type 'acme.latency-collector' is taken: other 1.0" in message(result)


def test_distribution_that_is_installed_already_is_refused(run_cli, make_distribution):
    taken = make_distribution("acme-latency", version="3.0")

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer", path=[taken])

    assert result.exit_code == 2
    assert "distribution 'acme-latency' is taken: version 3.0 is installed" in message(result)


def test_package_that_python_imports_already_is_refused(run_cli, make_distribution):
    taken = make_distribution("unrelated", modules={"acme_latency": ""})

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer", path=[taken])

    assert result.exit_code == 2
    assert "package name 'acme_latency' is taken: Python imports another module by it" in message(result)


def test_existing_folder_is_left_as_it_is(run_cli, tmp_path):
    folder = tmp_path / "acme-latency"
    folder.mkdir()
    (folder / "notes").write_text("mine")

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer")

    assert result.exit_code == 2
    assert "'acme-latency' exists already; remove it, or choose another folder with --output" in message(result)
    assert [entry.name for entry in folder.iterdir()] == ["notes"]


def test_folder_that_cannot_be_written_is_the_environments_fault(run_cli, tmp_path):
    (tmp_path / "file").write_text("")

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer", "--output", "file/below")

    assert result.exit_code == 5
    assert "error: 'file/below/acme-latency' cannot be written: Not a directory" in message(result)


def test_without_cookiecutter_it_says_what_to_install(run_cli, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "cookiecutter.py").write_text("raise ModuleNotFoundError(\"No module named 'cookiecutter'\", name='cookiecutter')\n")

    result = run_cli("new", "latency", "--vendor", "acme", "--kind", "scorer", path=[blocked])

    assert result.exit_code == 5
    assert result.stderr == "error: 'cookiecutter' is not installed, and `endpick new` needs it; pip install 'endpick[scaffold]'\n"


def test_kind_has_to_be_said_and_known(run_cli):
    assert "Missing option '--kind'" in run_cli("new", "latency").stderr
    assert "'admitter' is not one of" in run_cli("new", "latency", "--kind", "admitter").stderr


def test_template_and_command_have_the_same_kinds(run_cli):
    variables = json.loads((TEMPLATE / "cookiecutter.json").read_text())

    assert sorted(variables["kind"]) == sorted(KINDS)
    assert f"endpick, version {variables['endpick_version']}\n" == run_cli("--version").stdout
    assert f'TYPE_PATTERN = r"{TYPE_PATTERN}"' in (TEMPLATE / "hooks" / "pre_gen_project.py").read_text()


def test_template_refuses_bad_names_by_itself_too(tmp_path):
    from cookiecutter.exceptions import FailedHookException
    from cookiecutter.generate import generate_context, generate_files
    from cookiecutter.prompt import prompt_for_config

    def run_by_hand(plugin_type: str) -> Path:
        context = generate_context(str(TEMPLATE / "cookiecutter.json"), extra_context={"plugin_type": plugin_type})
        variables = prompt_for_config(context, no_input=True)
        return Path(generate_files(TEMPLATE, {"cookiecutter": variables}, tmp_path))

    for bad in ("Acme.x", "acme.3d", "latency"):
        with pytest.raises(FailedHookException):
            run_by_hand(bad)
    assert list(tmp_path.iterdir()) == []
    assert (run_by_hand("acme.good") / "pyproject.toml").is_file()


@pytest.mark.long
def test_installed_copy_makes_the_same_project_as_the_repository(run_cli, plugin_host, tmp_path):
    arguments = ("new", "latency", "--vendor", "acme", "--kind", "data-source", "--output")
    run_cli(*arguments, tmp_path / "repository")

    made = plugin_host.run("endpick", *arguments, str(tmp_path / "installed"))

    assert made.startswith(f"made {tmp_path}/installed/acme-latency: ")
    assert contents(tmp_path / "installed") == contents(tmp_path / "repository")


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return {str(file.relative_to(folder)): file.read_text() for file in files}
