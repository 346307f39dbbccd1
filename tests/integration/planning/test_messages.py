"""What an operator reads who made a common mistake, word for word, from the built-in plugins.

Set ENDPICK_UPDATE_GOLDEN=1 to write the golden files anew, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import importlib_metadata
import pytest

from endpick.config import load_config
from endpick.diagnostics import render_text
from endpick.planning.planner import make_plan
from endpick.plugins.discovery import discover

GOLDEN = Path(__file__).parent / "golden"
LLM_D = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
ENDPICK = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"

MISPLACED = """\
plugins:
  - type: prefix-cache-scorer
    parameters: {lruCapacityPerServer: 5, blockSize: 16}
  - type: active-request-scorer
    parameters: {requestTimeout: 30s}
"""

CASES = {
    "parameter-without-effect": LLM_D + MISPLACED,
    "parameter-without-effect-in-endpicks-own-version": ENDPICK + MISPLACED,
}


def _read(text: str) -> str:
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    shown = render_text(outcome.diagnostics, {"config.yaml": text})
    return shown.replace(f"endpick {importlib_metadata.version('endpick')}", "endpick <version>")


@pytest.mark.parametrize("case", CASES)
def test_a_common_mistake_is_told_as_the_golden_file_says(case: str) -> None:
    shown = _read(CASES[case])
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown, encoding="utf-8")

    assert shown == golden.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == CASES.keys()
