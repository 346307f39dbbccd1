"""Verbs that other distributions bring, in an environment where they are installed."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def path(fixture_project, make_distribution):
    modules = {"acme_other": 'VERBS = {"both": ("acme_other:x", "One."), "twice": ("acme_other:x", "Two.")}\n'}
    return [
        fixture_project("verbs"),
        make_distribution("acme-other", {"other": "acme_other:VERBS"}, group="endpick.verbs.v1", modules=modules),
        make_distribution(
            "acme-third", {"third": "acme_third:VERBS"}, group="endpick.verbs.v1", modules={"acme_third": modules["acme_other"]}
        ),
    ]


def test_a_verb_of_another_distribution_runs(path, run_cli):
    result = run_cli("report", "May", path=path)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "report of May\n", "")


def test_the_schema_of_its_output_is_printed(path, run_cli):
    result = run_cli("schema", "report", path=path)

    schema = json.loads(result.stdout)
    assert (schema["title"], schema["description"], schema["required"]) == ("endpick report", "The report of a month.", ["month"])


def test_help_lists_verbs_under_their_distribution(path, run_cli):
    result = run_cli("--help", path=path)

    commands, _, theirs = result.stdout.partition("\nacme-reports:\n")
    assert "  report      Write the monthly report.\n" in theirs
    assert "\n  serve " not in theirs
    assert "  serve     Serve a gateway" in commands
    assert "Some installed verbs cannot be used; `endpick doctor` explains why." in result.stdout


@pytest.mark.parametrize(
    ("verb", "message", "help_line"),
    [
        (
            "forgotten",
            "acme-reports 1.0 names acme_reports.command:forgotten: module 'acme_reports.command' has no attribute 'forgotten'",
            "the author of acme-reports has to correct acme_reports.verbs:VERBS",
        ),
        (
            "astray",
            "error[E0326]: 'astray' cannot be imported: acme-reports 1.0 names acme_reports.nowhere:command, and there is no such module",
            "the author of acme-reports has to correct acme_reports.verbs:VERBS",
        ),
        (
            "excel",
            "error[E0326]: 'excel' cannot be imported: acme-reports 1.0 needs the module 'openpyxl_of_acme', which is not installed",
            "pip install 'acme-reports[excel]'",
        ),
        (
            "no-command",
            "acme-reports 1.0 names acme_reports.command:NAME: it leads to 'report', no click command",
            "the author of acme-reports has to correct acme_reports.verbs:VERBS",
        ),
        (
            "explosive",
            "error[E0326]: 'explosive' cannot be imported: acme-reports 1.0 raised RuntimeError: no disk",
            "report it to the author of acme-reports",
        ),
        ("both", "error[E0325]: the verb 'both' is offered by acme-other 1.0 and acme-third 1.0", "uninstall one of them"),
    ],
)
def test_a_verb_that_cannot_run_is_explained(path, run_cli, verb, message, help_line):
    result = run_cli(verb, path=path)

    assert result.exit_code == 4
    assert message in " ".join(result.stderr.split())
    assert f"= help: {help_line}" in result.stderr


def test_a_verb_of_the_hosts_name_is_ignored(path, run_cli):
    assert "Serve a gateway" in run_cli("serve", "--help", path=path).stdout.partition("Options")[0].replace("\n  ", " ")


def test_an_unknown_verb_shows_tables_that_cannot_be_read(path, run_cli):
    result = run_cli("half", path=path)

    assert result.exit_code == 2
    assert (
        "error[E0324]: the verbs of acme-reports 1.0 cannot be read: 'half': 'acme_reports.command:report' is no entry of" in result.stderr
    )
    assert "raised RuntimeError: no table" in result.stderr
    assert "module 'acme_reports.verbs' has no attribute 'NOWHERE'" in result.stderr
    assert "no such command 'half'" in result.stderr


def test_doctor_lists_what_is_wrong_with_verbs(path, run_cli):
    findings = json.loads(run_cli("doctor", "--format", "json", path=path).stdout)["findings"]["diagnostics"]

    codes = [finding["code"] for finding in findings]
    assert codes.count("E0324") == 3
    assert codes.count("E0325") == 3


def test_without_strangers_all_verbs_are_usable(run_cli):
    assert "cannot be used" not in run_cli("--help").stdout
