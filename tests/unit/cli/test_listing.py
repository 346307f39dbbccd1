"""Tables, JSON, and the status of candidates."""

from __future__ import annotations

from endpick.cli.console import json_text, table
from endpick.cli.listing import statuses
from endpick.host.discovery import Candidate


def candidate(plugin_type="a.b", distribution="acme", **more):
    return Candidate(plugin_type, more.pop("api_major", 1), distribution, "1.0", "m:C", f"/{distribution}", **more)


def test_columns_are_aligned_and_lines_end_clean():
    assert table(("A", "LONG"), [("wide cell", "x"), ("y", "")]) == "A          LONG\nwide cell  x\ny\n"


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
