"""Every deprecated field, type, gate and parameter of llm-d's: what it becomes, and what the operator is told, under each apiVersion."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

import yaml_files
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.planner import make_plan

ROOT = Path(__file__).parents[4]
ROWS = yaml_files.load(ROOT / "tests/fixtures/catalogue/deprecated.yaml")
LLM_D, FORMER, ENDPICK = "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1", "endpick/v1alpha1"
OF_THE_EXAMPLE = {"W0301", "W0308", "W0504", "W0505", "W0506", "W0602"}
"""A document of two lines is odd in other ways, too."""


def planned(version: str, body: str) -> PlanOutcome:
    text = f"apiVersion: {version}\nkind: EndpointPickerConfig\n{body}\n"
    return make_plan(load_config(text=text, name="config.yaml"), discover(), allow_experimental=True)


def codes(outcome: PlanOutcome) -> list[str]:
    return sorted(one.code.name for one in outcome.diagnostics if one.code.name not in OF_THE_EXAMPLE)


def became(plan: Plan, what: str, *rest: str) -> object:
    if what == "parameter":
        first = next(one.parameters for one in plan.instances if one.path == ("plugins", 0))
        return reduce(lambda part, name: part.__dict__.get(name, None) or getattr(part, name), rest[0].split("."), first)
    if what == "type":
        return next(one.loaded.type for one in plan.instances if one.path == ("plugins", 0))
    if what == "filters":
        return plan.profiles[0].filters
    return getattr(plan, what)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["body"][:60])
def test_deprecated_part_has_its_meaning_and_a_warning(row):
    for version in (LLM_D, FORMER, ENDPICK):
        outcome = planned(version, row["body"])

        expected = row.get("refused", row["told"]) if version == ENDPICK else row["told"]
        assert codes(outcome) == sorted([*expected, *(["W0202"] if version != ENDPICK else [])])
        assert all(one.help or one.notes or one.message for one in outcome.diagnostics if one.code.name in expected)
        if outcome.plan is None:
            assert any(code.startswith("E") for code in expected)
        elif "becomes" in row:
            *what, value = row["becomes"]
            found = became(outcome.plan, *what)
            assert (list(found) if isinstance(found, tuple) else found) == value


def test_the_compatibility_page_has_a_row_for_it():
    for row in ROWS:
        page = (ROOT / "docs/explanation/compatibility.md").read_text()
        section = page.split("\n## Former names\n")[1].split("\n## ")[0]
        (line,) = [line for line in section.splitlines() if line.startswith("|") and f"`{row['name']}`" in line.split("|")[1]]
        assert all(code in line for code in {*row["told"], *row.get("refused", ())})
