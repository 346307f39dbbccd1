"""`endpick explain`."""

from __future__ import annotations

import json

from click.testing import CliRunner

from endpick.cli.listing import explain
from endpick.diagnostics import Code
from endpick.diagnostics.codes import explanation


def test_a_code_is_explained_in_any_letter_case() -> None:
    result = CliRunner().invoke(explain, ["e0301"])

    assert result.exit_code == 0
    assert result.output == explanation(Code.E0301)


def test_an_unknown_code_is_a_usage_error_with_a_suggestion() -> None:
    result = CliRunner().invoke(explain, ["E9301"])

    assert result.exit_code == 2
    assert "'E9301' is not a diagnostic code; did you mean 'E0301'?" in result.output


def test_without_a_code_all_are_listed() -> None:
    result = CliRunner().invoke(explain, [])

    assert result.output.splitlines() == [f"{code.name}  {code.title}" for code in Code]


def test_the_json_says_what_the_code_stands_for() -> None:
    result = CliRunner().invoke(explain, ["--format", "json", "E0301"])

    assert json.loads(result.output) == [
        {
            "code": "E0301",
            "severity": "error",
            "title": "no installed plugin offers this type",
            "exitCode": 4,
            "explanation": explanation(Code.E0301),
        }
    ]
