"""Parameters that llm-d takes and looks at none of: a warning in its configurations, an error in ours.

Short, because one rule is all there is.
"""

from __future__ import annotations

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from unit.host.planning.planned import Result

BODY = "plugins:\n- type: single-profile-handler\n  parameters: {primaryPort: 8000, x: 1}\n"


def planned(version: str) -> Result:
    text = f"apiVersion: {version}\nkind: EndpointPickerConfig\n{BODY}"
    return Result(make_plan(load_config(text=text, name="config.yaml"), discover()), text)


def test_a_configuration_for_llm_d_gets_a_warning_for_each() -> None:
    result = planned("llm-d.ai/v1")

    assert result.found == [("W0402", "primaryPort"), ("W0402", "x")]
    assert result.plan.handler == "single-profile-handler"
    assert "parameter 'primaryPort' has no effect" in result.outcome.diagnostics[0].message


def test_our_own_configuration_gets_errors() -> None:
    assert planned("endpick/v1alpha1").found == [("E0402", "primaryPort"), ("E0402", "x")]
