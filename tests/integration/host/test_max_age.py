"""`maxAge` of an instance: what was written longer ago is missing for that instance."""

from __future__ import annotations

import pytest

from endpick.api import WAITING_QUEUE_SIZE, PluginContext
from endpick.config import load_config
from endpick.engine.building import build_plan, carry_over
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan

CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {{type: queue-scorer, maxAge: {age}}}
  - {{type: max-score-picker}}
schedulingProfiles:
  - name: default
    plugins: [{{pluginRef: queue-scorer}}, {{pluginRef: max-score-picker}}]
"""


@pytest.mark.parametrize(("age", "ages", "expected"), [("1s", (0.5, 0.5), "idle"), ("1s", (1.5, 0.5), "busy"), ("0s", (1.5, 0.5), "idle")])
def test_stale_value_counts_as_missing(host, age: str, ages: tuple[float, float], expected: str) -> None:
    picker = host(CONFIG.format(age=age))
    picker.put(2)
    idle, busy = picker.table.generation.endpoints
    for endpoint, queue, old in ((idle, 0.0, ages[0]), (busy, 5.0, ages[1])):
        picker.clock.now = 1000.0 - old
        picker.table.write(WAITING_QUEUE_SIZE, endpoint, queue)
    picker.clock.now = 1000.0

    assert picker.ask("Hello").destinations == ({"idle": idle, "busy": busy}[expected].address,)


def planned(age: str) -> Plan:
    plan = make_plan(load_config(text=CONFIG.format(age=age), name="config.yaml"), discover()).plan
    assert plan is not None
    return plan


def test_max_age_changes_on_reload_and_state_stays() -> None:
    before, after = planned("2s"), planned("5s")
    built = build_plan(before, lambda _: PluginContext())
    assert isinstance(built, dict)
    old = built["queue-scorer"]
    assert old.scope.max_ages == {WAITING_QUEUE_SIZE.name: 2.0}

    carried = carry_over(before, built, after)["queue-scorer"]

    assert carried.plugin is old.plugin
    assert carried.scope.max_ages == {WAITING_QUEUE_SIZE.name: 5.0}
