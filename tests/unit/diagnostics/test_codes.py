"""Every code has a severity, an exit status and a page, and the pages tell the truth."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from endpick.config import load_config
from endpick.diagnostics import Code, Diagnostic, ExitCode, Severity, exit_code_of
from endpick.diagnostics.explain import explanation

SHOWN_BY_LOADING = [code for code in Code if code.family in (1, 2) and "```yaml" in explanation(code)]


@pytest.mark.parametrize("code", Code, ids=str)
def test_a_code_has_a_page_that_says_what_and_how_to_repair_it(code: Code) -> None:
    page = explanation(code)

    assert page.startswith(f"# {code.name}: {code.title}\n\n")
    assert "**Repair.** " in page
    assert "```" in page
    assert page.count("```") % 2 == 0
    assert page.endswith("\n")


@pytest.mark.parametrize("code", Code, ids=str)
def test_a_code_is_well_formed(code: Code) -> None:
    assert re.fullmatch(r"[EWN]0[1-8]\d\d", code.name)
    assert code.title[0].islower() or code.title.startswith("YAML")
    assert not code.title.endswith(".")
    assert str(code) == code.name


@pytest.mark.parametrize("code", SHOWN_BY_LOADING, ids=str)
def test_the_example_on_the_page_triggers_the_code(code: Code) -> None:
    example = explanation(code).split("```yaml\n", 1)[1].split("```", 1)[0]

    found = {diagnostic.code for diagnostic in load_config(text=example).diagnostics}

    assert code in found
    assert {other for other in found if other.severity is Severity.ERROR} <= {code}


def test_only_what_needs_a_file_has_no_example_to_load() -> None:
    assert {code for code in Code if code.family in (1, 2)} - set(SHOWN_BY_LOADING) == {Code.E0105, Code.E0110}


def test_there_is_no_page_without_a_code() -> None:
    pages = {entry.name.removesuffix(".md") for entry in files("endpick.diagnostics.explain").iterdir() if entry.name.endswith(".md")}

    assert pages == {code.name for code in Code}


@pytest.mark.parametrize(
    ("code", "severity", "status"),
    [
        (Code.E0101, Severity.ERROR, ExitCode.CONFIG_INVALID),
        (Code.E0201, Severity.ERROR, ExitCode.CONFIG_INVALID),
        (Code.E0301, Severity.ERROR, ExitCode.PLUGIN_UNUSABLE),
        (Code.E0402, Severity.ERROR, ExitCode.CONFIG_INVALID),
        (Code.E0404, Severity.ERROR, ExitCode.PLUGIN_UNUSABLE),
        (Code.E0501, Severity.ERROR, ExitCode.CONFIG_INVALID),
        (Code.E0601, Severity.ERROR, ExitCode.CONFIG_INVALID),
        (Code.E0701, Severity.ERROR, ExitCode.PLUGIN_UNUSABLE),
        (Code.E0703, Severity.ERROR, ExitCode.FAILED),
        (Code.E0801, Severity.ERROR, ExitCode.FAILED),
        (Code.W0301, Severity.WARNING, ExitCode.OK),
        (Code.N0601, Severity.NOTE, ExitCode.OK),
    ],
)
def test_the_letter_gives_the_severity_and_the_family_the_exit_status(code, severity, status) -> None:
    assert (code.severity, code.exit_code) == (severity, status)


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ([], ExitCode.OK),
        ([Code.W0301, Code.N0601], ExitCode.OK),
        ([Code.E0801, Code.E0301], ExitCode.PLUGIN_UNUSABLE),
        ([Code.E0801, Code.W0301, Code.E0301, Code.E0201], ExitCode.CONFIG_INVALID),
    ],
)
def test_of_several_errors_the_smallest_exit_status_wins(codes, status) -> None:
    assert exit_code_of(Diagnostic(code, "x") for code in codes) == status


def test_exit_statuses_never_change() -> None:
    assert {status.name: int(status) for status in ExitCode} == {
        "OK": 0,
        "INTERNAL_ERROR": 1,
        "USAGE": 2,
        "CONFIG_INVALID": 3,
        "PLUGIN_UNUSABLE": 4,
        "FAILED": 5,
        "INTERRUPTED": 130,
    }
