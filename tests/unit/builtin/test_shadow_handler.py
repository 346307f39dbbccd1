"""`shadow-profile-handler`: the shadow is seen in metrics and records, and nowhere else."""

from __future__ import annotations

import pytest

from endpick.api import WAITING_QUEUE_SIZE
from endpick.api.keys import INFLIGHT_REQUESTS
from endpick.testing.host import Host, host_of

CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: shadow-profile-handler
    parameters: {profile: short, shadowProfile: %s, sampleRate: %s}
  - type: queue-scorer
  - type: session-affinity-scorer
  - type: active-request-scorer
  - type: label-selector-filter
    parameters: {matchLabels: {none: has-this}}
schedulingProfiles:
  - name: short
    plugins: [{pluginRef: queue-scorer}]
  - name: other
    plugins: [{pluginRef: active-request-scorer}, {pluginRef: queue-scorer, weight: -0.5}]
  - name: broken
    plugins: [{pluginRef: label-selector-filter}]
"""


def host(shadow: str = "other", rate: float = 1.0) -> Host:
    made = host_of(CONFIG % (shadow, rate))
    made.put({WAITING_QUEUE_SIZE: [4.0, 0.0, 9.0]})
    return made


def counted(picker: Host, name: str) -> dict[str, float]:
    """By the only label."""
    handler = picker.instances["shadow-profile-handler"].plugin
    (family,) = getattr(handler, name).collect()
    return {next(iter(sample.labels.values())): sample.value for sample in family.samples}


def test_the_shadow_does_not_change_the_decision():
    with host() as picker:
        explanation = picker.ask("Hello")
        assert explanation.destinations == ("10.0.0.2:8000",)
        assert [run.profile for run in explanation.runs] == ["short", "other"]
        assert explanation.record.notes == {"shadow-profile-handler": {"shadow_pick": "default/e2"}}
        assert counted(picker, "_compared") == {"disagreed": 1.0}
        assert counted(picker, "_load") == {"actual": 0.0, "shadow": 9.0}
        assert set(counted(picker, "_cached")) == {"actual", "shadow"}
        load = picker.table.view()[INFLIGHT_REQUESTS]
        assert not load[2] > 0.0  # never counted for the shadow's pick


def test_agreement_is_counted():
    with host() as picker:
        picker.put({WAITING_QUEUE_SIZE: [1.0]})
        picker.ask("Hello")
        assert counted(picker, "_compared") == {"agreed": 1.0}


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0, 0), (0.3, 15, 50), (1.0, 100, 100)])
def test_the_sample_is_as_large_as_asked(rate, least, most):
    with host(rate=rate) as picker:
        runs = [len(picker.ask("Hello").runs) for _ in range(100)]
        assert least <= runs.count(2) <= most


def test_a_shadow_without_a_pick_costs_nothing():
    with host("broken") as picker:
        assert picker.ask("Hello").destinations == ("10.0.0.2:8000",)
        assert counted(picker, "_compared") == {"failed": 1.0}
