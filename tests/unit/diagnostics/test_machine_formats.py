"""Diagnostics for programs: JSON that fits its committed schema, and GitHub's workflow commands."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from endpick.diagnostics import (
    Code,
    Diagnostic,
    Label,
    PluginReference,
    Span,
    has_errors,
    render_github,
    render_json,
    sort_diagnostics,
)
from endpick.diagnostics.render import SCHEMA

SCHEMA_FILE = Path(__file__).parents[3] / "schemas" / "diagnostics.v1.json"

FULL = Diagnostic(
    Code.E0402,
    "unknown parameter 'treshold', 100%\nof it: wrong",
    Span("dir,a/c:1.yaml", 3, 5, 3, 13),
    labels=(Label(Span("b.yaml", 1, 1, 2, 1), "merged in here"),),
    help="did you mean 'threshold'?",
    notes=("one", "two"),
    plugin=PluginReference("queue-scorer", "q", "endpick", "0.1.0"),
    path=("plugins", 0, "parameters", "treshold"),
    annotation="here",
)
BARE = Diagnostic(Code.E0801, "cannot listen")
WARNING = Diagnostic(Code.W0301, "unused", Span("c.yaml", 1, 1, 1, 1))


def test_the_committed_schema_is_fresh() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == SCHEMA, (
        "schemas/diagnostics.v1.json is out of date: write endpick.diagnostics.machine_formats.SCHEMA to it"
    )


def test_the_json_fits_its_schema_and_says_everything() -> None:
    document = json.loads(render_json([FULL, BARE, WARNING]))

    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(document)
    assert (document["version"], document["errors"], document["warnings"]) == (1, 2, 1)
    assert [entry["code"] for entry in document["diagnostics"]] == ["W0301", "E0402", "E0801"]
    assert document["diagnostics"][1] == {
        "code": "E0402",
        "severity": "error",
        "title": "a parameter is not known to the plugin",
        "message": "unknown parameter 'treshold', 100%\nof it: wrong",
        "span": {"file": "dir,a/c:1.yaml", "line": 3, "column": 5, "endLine": 3, "endColumn": 13},
        "annotation": "here",
        "labels": [
            {
                "span": {"file": "b.yaml", "line": 1, "column": 1, "endLine": 2, "endColumn": 1},
                "message": "merged in here",
            }
        ],
        "help": "did you mean 'threshold'?",
        "notes": ["one", "two"],
        "plugin": {"type": "queue-scorer", "instance": "q", "distribution": "endpick", "version": "0.1.0"},
        "path": ["plugins", 0, "parameters", "treshold"],
    }
    assert document["diagnostics"][2]["span"] is None


def test_json_leaves_none_out() -> None:
    many = [Diagnostic(Code.E0201, str(number), Span("c.yaml", number, 1, number, 2)) for number in range(1, 200)]

    assert len(json.loads(render_json(many))["diagnostics"]) == 199


def test_the_json_can_be_read_by_people_too() -> None:
    text = render_json([Diagnostic(Code.E0801, "größe", Span.start_of("日本.yaml"))])

    assert text.startswith('{\n  "version": 1,\n  "errors": 1,\n')
    assert '"message": "größe"' in text
    assert '"file": "日本.yaml"' in text


def test_a_github_command_escapes_what_would_end_it() -> None:
    assert render_github([FULL]) == (
        "::error file=dir%2Ca/c%3A1.yaml,line=3,col=5,endLine=3,endColumn=12,title=E0402::"
        "unknown parameter 'treshold', 100%25%0Aof it: wrong"
        "%0Ahelp: did you mean 'threshold'?%0Ab.yaml:1:1: merged in here%0Anote: one%0Anote: two\n"
    )


def test_github_commands_without_a_place_or_with_an_empty_one() -> None:
    assert render_github([BARE, WARNING, Diagnostic(Code.N0601, "added")]) == (
        "::warning file=c.yaml,line=1,col=1,endLine=1,endColumn=1,title=W0301::unused\n"
        "::error title=E0801::cannot listen\n"
        "::notice title=N0601::added\n"
    )


def test_github_end_column_is_inclusive() -> None:
    for span, expected in [
        (Span("c.yaml", 2, 5, 2, 5), "line=2,col=5,endLine=2,endColumn=5"),
        (Span("c.yaml", 2, 9, 3, 4), "line=2,col=9,endLine=3,endColumn=3"),
        (Span("c.yaml", 2, 9, 3, 1), "line=2,col=9,endLine=3,endColumn=1"),
    ]:
        assert render_github([Diagnostic(Code.E0201, "m", span)]) == f"::error file=c.yaml,{expected},title=E0201::m\n"


def test_github_command_is_one_line() -> None:
    assert render_github([Diagnostic(Code.E0801, "a\r\nb")]) == "::error title=E0801::a%0D%0Ab\n"


def test_the_start_of_a_file_is_its_first_character() -> None:
    assert Span.start_of("a.yaml") == Span("a.yaml", 1, 1, 1, 1)


def test_sorting_is_by_place_then_code_and_drops_repetitions() -> None:
    first = Diagnostic(Code.E0202, "b", Span("a.yaml", 1, 1, 1, 2))
    same_place = Diagnostic(Code.E0201, "a", Span("a.yaml", 1, 1, 1, 2))
    later_column = Diagnostic(Code.E0101, "c", Span("a.yaml", 1, 2, 1, 3))
    other_file = Diagnostic(Code.E0101, "d", Span("b.yaml", 1, 1, 1, 2))

    ordered = sort_diagnostics([BARE, other_file, later_column, first, same_place, first])

    assert ordered == (same_place, first, later_column, other_file, BARE)


def test_only_errors_prevent_the_start() -> None:
    assert has_errors([WARNING, BARE])
    assert not has_errors([WARNING])


def test_a_plugin_is_named_as_far_as_it_is_known() -> None:
    assert str(PluginReference("a")) == "a"
    assert str(PluginReference("a", "a", "dist", "1.0")) == "a from dist 1.0"
    assert str(PluginReference("a", "mine", "dist")) == "mine (a) from dist"
