"""What the verbs about plugins print as JSON is what their published schemas say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry

SCHEMAS = Path(__file__).parents[3] / "schemas"
PROJECTS = ("good-scorers", "evil-scorers", "misfits", "future-api", "chatty", "hook-objects", "unmet-requirement")


def valid_as(schema: str, document: object) -> None:
    (file,) = SCHEMAS.glob(f"{schema}.v*.json")
    described = json.loads(file.read_text())
    jsonschema.Draft202012Validator(described, registry=Registry()).validate(document)


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (["list"], "list"),
        (["list", "--load"], "list"),
        (["list", "--kind", "scorer"], "list"),
        (["describe", "acme.region"], "describe"),
        (["doctor"], "doctor"),
        (["doctor", "--load"], "doctor"),
        (["lock"], "lock"),
        (["lock", "--check", "-o", "nowhere.json"], "diagnostics"),
    ],
)
def test_output_is_as_its_schema_says(fixture_project, run_cli, arguments, schema):
    path = [fixture_project(name) for name in PROJECTS]

    result = run_cli(*arguments, "--format", "json", path=path)

    valid_as(schema, json.loads(result.stdout))


def test_kind_shows_only_that_kind(fixture_project, run_cli):
    listed = json.loads(run_cli("list", "--kind", "picker", "--format", "json").stdout)["plugins"]

    assert {"max-score-picker", "random-picker"} <= {one["type"] for one in listed}
    assert all("picker" in one["kinds"] for one in listed)


def test_a_plugin_that_cannot_be_loaded_is_listed_as_broken(fixture_project, run_cli):
    path = [fixture_project("broken-import"), fixture_project("good-scorers")]
    text = run_cli("list", "--load", path=path, environment={"COLUMNS": "500"}).stdout

    (broken,) = [line for line in text.splitlines() if line.startswith("  broken.import ")]
    assert "broken: 'broken.import' cannot be imported" in broken
    assert broken.endswith("[E0305]")
    assert "1 of " in text.splitlines()[-1]


def test_describing_a_broken_plugin_says_why(fixture_project, run_cli):
    result = run_cli("describe", "misfit.abstract", path=[fixture_project("misfits")])

    assert (result.exit_code, result.stdout) == (4, "")
    assert "error[E0311]" in result.stderr


def test_describe_settles_a_clash_with_from(fixture_project, run_cli):
    path = [fixture_project("good-scorers"), fixture_project("evil-scorers")]

    assert run_cli("describe", "acme.latency", path=path).exit_code == 4
    assert "from:         evil-scorers 6.6.6" in run_cli("describe", "acme.latency", "--from", "evil-scorers", path=path).stdout


def test_endpick_alone_passes_doctor_strict(run_cli):
    examined = run_cli("doctor", "--strict", "--load")
    assert examined.exit_code == 0, examined.stdout
    assert "no problems found" in examined.stdout


def test_doctor_shows_import_times_slowest_first(fixture_project, run_cli):
    path = [fixture_project("slow-import")]
    lines = run_cli("doctor", "--load", path=path, environment={"COLUMNS": "500"}).stdout.splitlines()

    begin = next(number for number, line in enumerate(lines) if line.startswith("TYPE")) + 1
    table = [line for line in lines[begin : lines.index("", begin)] if " ms " in line]
    shown = [float(found[1]) for line in table if (found := re.search(r" ([0-9.]+) ms ", line)) is not None]
    (slow,) = [line for line in table if line.startswith("slow.import")]
    assert shown == sorted(shown, reverse=True)
    assert shown[table.index(slow)] >= 300.0, "it sleeps so long; a busy machine may make others slower"
    assert "slow-import 1.0" in slow
    assert slow.endswith("slow_import.py")


def test_unwritable_lock_file_is_an_environment_error(run_cli):
    result = run_cli("lock", "-o", "no/such/directory/lock.json")

    assert result.exit_code == 5
    assert result.stderr == "error: the lock file no/such/directory/lock.json cannot be written: No such file or directory\n"


def test_a_decision_that_was_tried_is_as_its_schema_says(fixture_project, run_cli, tmp_path):
    (tmp_path / "request.json").write_text('{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{name: a, address: 10.0.0.1, port: 1}, {name: b, address: 10.0.0.2, port: 1}]\n")
    config = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: faulty.nan}, {type: faulty.last}]\n"
    options = ("--request", "request.json", "--endpoints", "endpoints.yaml", "--header", "x-some-header:1", "--format", "json")

    result = run_cli("try", "-", *options, path=[fixture_project("faulty-scorers")], text=config)

    document = json.loads(result.stdout)
    valid_as("try", document)
    assert [scorer["answered"] for run in document["runs"] for scorer in run["scorers"]] == [[None, None], [0.0, 1.0]]
    assert document["faults"] == [
        {"instance": "faulty.nan", "extensionPoint": "Scorer", "problem": "answered a score that is not a finite number"}
    ]


def test_verdicts_of_the_kit_are_as_their_schema_says(fixture_project, run_cli):
    result = run_cli("test", "faulty.nan", "--format", "json", path=[fixture_project("faulty-scorers")])

    document = json.loads(result.stdout)
    valid_as("test", document)
    assert [plugin["conforms"] for plugin in document["plugins"]] == [False]


def test_no_name_in_any_published_schema_is_in_another_style():
    for file in SCHEMAS.glob("*.json"):
        if file.name == "simulate.v1.json":
            continue  # its names are those of load generators, such as `ttft_seconds`
        assert [name for name in property_names(json.loads(file.read_text())) if "_" in name] == [], file.name


def property_names(schema):
    """The names of all properties, at any depth."""
    if isinstance(schema, list):
        return [name for one in schema for name in property_names(one)]
    if not isinstance(schema, dict):
        return []
    own = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
    return [*own, *(name for value in schema.values() for name in property_names(value))]
