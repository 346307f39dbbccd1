"""Codes: severity, exit status and explain page."""

from __future__ import annotations

import re
from importlib.resources import files

from endpick.cli.validate import judge_plan
from endpick.config import load_config
from endpick.diagnostics import Code, Diagnostic, ExitCode, Severity, exit_code_of
from endpick.diagnostics.codes import explanation
from endpick.host.discovery import discover
from endpick.host.planning.pool import discovery_by_flags

SHOWN_BY_LOADING = [code for code in Code if code.family in (1, 2) and "```yaml" in explanation(code)]
HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def test_every_code_has_a_page_with_a_repair() -> None:
    for code in Code:
        page = explanation(code)
        assert page.startswith(f"# {code.name}: {code.title}\n\n"), code
        assert "**Repair.** " in page, code
        assert "```" in page, code
        assert page.count("```") % 2 == 0, code
        assert page.endswith("\n"), code


def test_every_code_is_well_formed() -> None:
    for code in Code:
        assert re.fullmatch(r"[EWN]0[1-8]\d\d", code.name), code
        assert code.title[0].islower() or code.title.startswith("YAML"), code
        assert not code.title.endswith("."), code
        assert str(code) == code.name


def test_example_on_the_page_triggers_the_code() -> None:
    for code in SHOWN_BY_LOADING:
        example = explanation(code).split("```yaml\n", 1)[1].split("```", 1)[0]

        found = {diagnostic.code for diagnostic in load_config(text=example).diagnostics}

        assert code in found
        assert {other for other in found if other.severity is Severity.ERROR} <= {code}


def test_example_of_a_plan_triggers_the_code() -> None:
    shown = {code: example for code in Code if code.family > 2 and (example := first_example(code))}
    installed = discover()

    for code, example in shown.items():
        loaded = load_config(text=example if "apiVersion" in example else HEADER + example)
        found = {diagnostic.code for diagnostic in (*judge_plan(loaded, installed), *filter(None, [discovery_by_flags(loaded)]))}

        assert code in found, (code, found)
        assert {other for other in found if other.severity is Severity.ERROR} <= {code}, code
    assert len(shown) > 30


def first_example(code: Code) -> str:
    """Empty unless YAML: other examples need more than a configuration."""
    language, _, rest = explanation(code).split("```", 1)[1].partition("\n")
    return rest.split("```", 1)[0] if language == "yaml" else ""


def test_only_file_errors_have_no_example() -> None:
    assert {code for code in Code if code.family in (1, 2)} - set(SHOWN_BY_LOADING) == {Code.E0105, Code.E0110}


def test_every_page_has_a_code() -> None:
    pages = {entry.name.removesuffix(".md") for entry in (files("endpick.diagnostics") / "explain").iterdir()}

    assert pages == {code.name for code in Code}


def test_letter_and_family_give_severity_and_exit_status() -> None:
    for code, severity, status in [
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
    ]:
        assert (code.severity, code.exit_code) == (severity, status)


def test_smallest_exit_status_wins() -> None:
    for codes, status in [
        ([], ExitCode.OK),
        ([Code.W0301, Code.N0601], ExitCode.OK),
        ([Code.E0801, Code.E0301], ExitCode.PLUGIN_UNUSABLE),
        ([Code.E0801, Code.W0301, Code.E0301, Code.E0201], ExitCode.CONFIG_INVALID),
    ]:
        assert exit_code_of(Diagnostic(code, "x") for code in codes) == status


def test_exit_statuses_are_stable() -> None:
    assert {status.name: int(status) for status in ExitCode} == {
        "OK": 0,
        "INTERNAL_ERROR": 1,
        "USAGE": 2,
        "CONFIG_INVALID": 3,
        "PLUGIN_UNUSABLE": 4,
        "FAILED": 5,
        "DIFFERENT": 6,
        "INTERRUPTED": 130,
    }
