"""Tables, JSON, and the status of candidates."""

from __future__ import annotations

import sys

import pytest

from endpick.cli.console import json_text
from endpick.cli.listing import statuses
from endpick.diagnostics.tables import table
from endpick.host.discovery import Candidate


def candidate(plugin_type="a.b", distribution="acme", **more):
    return Candidate(plugin_type, more.pop("api_major", 1), distribution, "1.0", "m:C", f"/{distribution}", **more)


def test_columns_are_aligned_and_lines_end_clean():
    assert table(("A", "LONG"), [("wide cell", "x"), ("y", "")]) == "A          LONG\nwide cell  x\ny\n"


NAMES = "approx-prefix-cache-producer"
SENTENCE = "Counts the leading blocks of the prompt that were sent to each candidate before."


@pytest.mark.parametrize("columns", [80, 40, 20])
def test_cells_are_wrapped_within_the_width(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))

    lines = table(("TYPE", "MEANING"), [(NAMES, SENTENCE), ("b", "short")], indent=2).splitlines()

    assert max(map(len, lines)) <= columns
    assert (columns < 80) or any(line.startswith(f"  {NAMES}  Counts") for line in lines)
    words = " ".join(line[len(lines[0].partition("MEANING")[0]) :].strip() for line in lines[1:-1])
    assert words.replace(" ", "") == SENTENCE.replace(" ", "")


def test_headers_are_wrapped_before_cells(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")

    assert table(("A-LONGER-HEADER", "VALUE"), [("1.000 (2.000)", "x")]) == "A-LONGER-\nHEADER         VALUE\n1.000 (2.000)  x\n"


@pytest.mark.parametrize(("environment", "is_coloured"), [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_only_terminals_see_colours(monkeypatch, environment, is_coloured):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert ("\x1b[1mTYPE" in table(("TYPE",), [("x",)])) == is_coloured


def test_json_is_sorted_and_ends_with_a_line_break():
    assert json_text({"b": 1, "a": "ä"}) == '{\n  "a": "ä",\n  "b": 1\n}\n'


def test_each_candidate_has_one_status():
    candidates = [
        candidate("a.ok"),
        candidate("A_B"),
        candidate("a.future", api_major=2),
        candidate("a.clash"),
        candidate("a.clash", "evil"),
        candidate("a.alone"),
        candidate("a.alone", "next", api_major=2),
    ]

    assert statuses(candidates) == ["ok", "invalid-name", "other-api", "conflict", "conflict", "ok", "other-api"]
