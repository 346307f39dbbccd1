"""What an operator reads who made a common mistake, word for word, from the built-in plugins.

Set ENDPICK_UPDATE_GOLDEN=1 to write the golden files anew, then read the difference.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from endpick.config import load_config
from endpick.diagnostics import render_text
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick.host.planning.pool import missing_discovery

GOLDEN = Path(__file__).parent / "golden"
LLM_D = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
ENDPICK = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"

MISPLACED = """\
plugins:
  - type: prefix-cache-scorer
    parameters: {lruCapacityPerServer: 5, blockSize: 16}
  - type: active-request-scorer
    parameters: {requestTimeout: 30s}
"""

DISCOVERY = """\
plugins:
  - type: queue-scorer
  - type: file-discovery
    name: pool
    parameters: {path: pool.yaml}
dataLayer: {discovery: {endpoints: {pluginRef: pool}}}
"""

CASES = {
    "variable": LLM_D + "plugins:\n  - type: file-discovery\n    parameters:\n      path: ${ENDPOINTS}\n"
    "dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n",
    "variable-in-braces": LLM_D + "plugins:\n  - {type: file-discovery, parameters: {path: ${ENDPOINTS}}}\n",
    "type": LLM_D + "plugins:\n  - type: queue-scorrer\n",
    "discovery-in-a-profile": LLM_D + DISCOVERY + "schedulingProfiles:\n  - name: default\n    plugins:\n"
    "      - pluginRef: pool\n      - pluginRef: queue-scorer\n",
    "emptied-profile": LLM_D + "plugins:\n  - type: queue-scorer\nschedulingProfiles:\n  - name: default\n    plugins:\n"
    "      # - pluginRef: queue-scorer\n",
    "wrong-kind": LLM_D + DISCOVERY + "requestHandler:\n  parsers:\n    - pluginRef: queue-scorer\n",
    "missing-discovery": LLM_D + "plugins:\n  - type: queue-scorer\n",
    "only-prefixes": LLM_D + "plugins:\n  - type: prefix-cache-scorer\nschedulingProfiles:\n  - name: default\n    plugins:\n"
    "      - pluginRef: prefix-cache-scorer\n",
    "picker-ignores-scores": LLM_D + "plugins:\n  - type: queue-scorer\n  - type: random-picker\nschedulingProfiles:\n"
    "  - name: default\n    plugins:\n      - pluginRef: queue-scorer\n      - pluginRef: random-picker\n",
    "picker-names-fallbacks": LLM_D + "plugins:\n  - type: max-score-picker\n    parameters: {maxNumOfEndpoints: 2}\n",
    "parameter-without-effect": LLM_D + MISPLACED,
    "parameter-without-effect-in-endpicks-own-version": ENDPICK + MISPLACED,
}


def _read(text: str, case: str) -> str:
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    missing = None if outcome.plan is None else missing_discovery(outcome.plan.config)
    found = (*outcome.diagnostics, *([missing] if missing and "discovery" in case else []))
    shown = render_text(found, {"config.yaml": text})
    return shown.replace(f"endpick {metadata.version('endpick')}", "endpick <version>")


@pytest.mark.parametrize("case", CASES)
def test_a_common_mistake_is_told_as_the_golden_file_says(case: str) -> None:
    shown = _read(CASES[case], case)
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown, encoding="utf-8")

    assert shown == golden.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == CASES.keys()
