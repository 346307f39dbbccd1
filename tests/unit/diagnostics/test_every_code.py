"""Every code is raised somewhere, and its exact place is asserted by some test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpick.diagnostics import Code

TESTS = Path(__file__).parents[2]
SOURCES = [TESTS.parent / "core" / "endpick", TESTS.parent / "extras"]

ASSERTED_IN: dict[Code, str] = {
    Code.E0105: "unit/config/test_config_spans.py::test_a_byte_that_is_not_utf8_is_shown_at_its_place",
    Code.E0110: "unit/config/test_config_spans.py::test_a_file_that_does_not_exist_is_a_diagnostic",
    Code.W0205: "unit/config/test_config_spans.py::test_an_overridden_field_is_shown_beside_what_overrides_it",
    Code.E0321: "unit/host/test_lock.py::test_lock_file_that_cannot_be_read_is_reported",
    Code.E0408: "unit/host/planning/test_upstream_names.py::test_a_missing_name_of_llm_d_has_a_place",
    Code.N0602: "integration/host/test_two_producers.py::test_a_reader_that_names_no_producer_reads_the_default",
    Code.E0703: "unit/engine/test_reloads.py::test_what_does_not_start_is_reported_at_its_place",
    Code.E0706: "unit/engine/test_reloads.py::test_what_does_not_start_is_reported_at_its_place",
    Code.E0810: "unit/cli/test_replay.py::test_what_is_wrong_with_records_is_told_with_its_place",
    Code.W0801: "unit/cli/test_replay.py::test_a_torn_last_line_and_refusals_are_left_out",
}
"""Tests that compare spans in a way that `_placed_in_tables` and `_placed_in_golden_files` do not see."""

WITHOUT_A_PLACE = {
    Code.E0801: "about a port, which is given on the command line",
    Code.E0802: "about a file that is named on the command line",
    Code.E0701: "about what is installed",
    Code.E0702: "about what is installed",
    Code.E0704: "about the end of the process",
    Code.E0705: "about what is installed",
    Code.E0805: "about what is installed",
    Code.E0807: "about memory, which is given on the command line",
    Code.E0808: "about a file that is named on the command line",
    Code.E0809: "about the gateway, which the document does not configure",
    Code.E0811: "about what is installed",
    Code.E0324: "about what is installed",
    Code.E0325: "about what is installed",
    Code.E0326: "about what is installed",
    Code.W0302: "about what is installed",
    Code.W0305: "about what is installed",
    Code.W0310: "about what is installed",
    Code.W0802: "about what is installed",
    Code.N0601: "about something that the document lacks",
    Code.N0801: "about something that the document lacks",
}


def test_every_code_is_raised() -> None:
    assert {code.name for code in Code} - RAISED == set()


def test_exact_place_of_every_code_is_asserted() -> None:
    assert {code for code in Code if code.name not in PLACED} - ASSERTED_IN.keys() - WITHOUT_A_PLACE.keys() == set()


@pytest.mark.parametrize(("code", "where"), ASSERTED_IN.items(), ids=str)
def test_listed_test_compares_spans(code: Code, where: str) -> None:
    file, _, name = where.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    (function,) = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    body = ast.get_source_segment(text, function) or ""

    assert code.name in body
    assert "span" in body or "-->" in body


def test_codes_without_a_place_are_tested() -> None:
    texts = [file.read_text(encoding="utf-8") for file in _test_files() if file != Path(__file__)]

    assert {code for code in WITHOUT_A_PLACE if not any(code.name in text for text in texts)} == set()


def test_lists_are_minimal() -> None:
    assert not ASSERTED_IN.keys() & WITHOUT_A_PLACE.keys()
    assert not {code.name for code in (*ASSERTED_IN, *WITHOUT_A_PLACE)} & PLACED


def _test_files() -> Iterator[Path]:
    return TESTS.rglob("test_*.py")


def _raised() -> set[str]:
    """Codes that the sources mention outside the catalogue itself."""
    texts = (file.read_text(encoding="utf-8") for folder in SOURCES for file in folder.rglob("*.py") if file.name != "codes.py")
    return {code for text in texts for code in re.findall(r"\bCode\.([EWN]\d{4})\b", text)}


def _placed_in_golden_files() -> set[str]:
    """Codes of diagnostics that a golden file shows with file, line, column and marks."""
    files = (file for file in TESTS.rglob("*.txt") if file.parent.name == "golden")
    texts = (file.read_text(encoding="utf-8") for file in files)
    return {code for text in texts for code in re.findall(r"^\w+\[([EWN]\d{4})\]: .*\n +--> \S+:\d+:\d+$", text, re.MULTILINE)}


def _placed_in_tables() -> set[str]:
    """Codes in pairs of a code and the text that its span has to cover, or a document in which that text is marked."""
    files = (file for package in ("unit/config", "unit/host/planning", "integration/host") for file in (TESTS / package).glob("test_*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    pairs = (node.elts for node in nodes if isinstance(node, ast.Tuple) and len(node.elts) == 2)
    return {
        code.value
        for code, text in pairs
        if isinstance(code, ast.Constant) and isinstance(code.value, str) and isinstance(text, ast.Constant | ast.JoinedStr | ast.BinOp)
        if not (isinstance(text, ast.Constant) and not text.value)
    }


RAISED = _raised()
PLACED = (_placed_in_golden_files() | _placed_in_tables()) & Code.__members__.keys()
