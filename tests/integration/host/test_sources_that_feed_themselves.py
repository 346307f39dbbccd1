"""A source that is its own collector, listed or not; and what else the current plugins need from the planner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endpick.api import PluginContext
from endpick.config import load_config
from endpick.engine.building import build_plan, compile_plan
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick.host.telemetry import NullTelemetry
from integration.host.test_llm_d_quirks import codes, planned, profile

SAMPLES = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data")) / "epp-configs-2026-10"
OBSERVER = "latency-observer-producer-hub"
SCORER = "- {type: latency-observation-scorer-hub, name: score}\n"
USED = profile("{pluginRef: score}")


@pytest.mark.parametrize(
    ("plugins", "layer", "expected"),
    [
        (SCORER, "", {OBSERVER: (OBSERVER,)}),
        (f"{SCORER}- {{type: {OBSERVER}, name: a}}\n", "", {"a": ("a",)}),
        (f"{SCORER}- {{type: {OBSERVER}, name: a}}\n", "  sources: [{pluginRef: a}]\n", {"a": ("a",)}),
    ],
    ids=["added", "defined", "listed"],
)
def test_observer_feeds_itself(plugins, layer, expected):
    outcome = planned(plugins, layer=layer, profiles=USED)

    assert outcome.plan is not None, codes(outcome)
    found = {source.instance: source.active for source in outcome.plan.sources}
    assert {name: active for name, active in found.items() if name in expected} == expected


def test_combined_detectors_have_their_own_boundary():
    text = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: static-discovery, parameters: {endpoints: [{name: a, address: 127.0.0.1, port: 1}]}}
- {type: max-saturation-detector, name: both, parameters: {detectors: [u, c]}}
- {type: utilization-detector, name: u}
- {type: concurrency-detector, name: c}
dataLayer: {discovery: {pluginRef: static-discovery}}
flowControl: {saturationDetector: {pluginRef: both}}
"""
    plan = make_plan(load_config(text=text, name="config.yaml"), discover()).plan
    assert plan is not None
    built = build_plan(plan, lambda _: PluginContext())
    assert isinstance(built, dict)
    pipeline = compile_plan(plan, built, NullTelemetry())

    assert pipeline.detector is not None
    assert pipeline.detector.instance.name == "both"


@pytest.mark.parametrize("detectors", ["[nobody]", "[both]", "[static-discovery]"])
def test_wrong_detectors_are_refused(detectors):
    outcome = planned(f"- {{type: max-saturation-detector, name: both, parameters: {{detectors: {detectors}}}}}\n")

    assert outcome.plan is None
    assert {"E0501", "E0503", "E0520"} & set(codes(outcome))


def test_rollout_sample_loads():
    sample = SAMPLES / "disaggregatedset-rollout.yaml"
    if not sample.exists():
        pytest.skip("needs llm-d's sample configurations; set ENDPICK_TEST_DATA")
    outcome = make_plan(load_config(sample), discover(), endpoints_file=Path("pool.yaml"))

    assert [one for one in outcome.diagnostics if one.is_error] == []
    assert outcome.plan is not None


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "code"),
    [
        ("disagg-headers-handler", "{}", "W0304"),
        ("prefill-header-handler", "{}", "W0303"),
        ("precise-prefix-cache-scorer", "{}", "W0304"),
        ("tokenizer", "{modelName: m}", "W0303"),
        ("pd-profile-handler", "{deciderPluginName: always}", "W0304"),
    ],
)
def test_types_that_llm_d_removed_load_with_a_note(plugin_type, parameters, code):
    outcome = planned(f"- {{type: always-disagg-pd-decider, name: always}}\n- {{type: {plugin_type}, parameters: {parameters}}}\n")

    assert code in codes(outcome)
    assert "E0301" not in codes(outcome)
