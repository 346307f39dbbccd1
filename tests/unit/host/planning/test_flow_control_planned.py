"""What `flowControl` comes to: defaults with their reasons, references that lead nowhere, limits; with the built-in plugins."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from endpick import __version__
from endpick.api import ResponseObserver
from endpick.cli.plan import plan as plan_command
from endpick.config import load_config
from endpick.diagnostics import render_text
from endpick.engine.plan_document import document_of
from endpick.flow_control.policies import bind_flow_control
from endpick.host.discovery import discover
from endpick.host.planning.plan import BandSettings, EvictionSettings
from endpick.host.planning.planner import make_plan
from unit.host.planning.planned import Result
from unit.scheduling.workbench import Recording, instance

GOLDEN = Path(__file__).parent / "golden"
BUILT_IN = tuple(candidate for candidate in discover() if candidate.is_builtin)
STRICT, FCFS = "global-strict-fairness-policy", "fcfs-ordering-policy"


def document(body: str, gate: bool = True) -> str:
    gates = "featureGates: [flowControl]\n" if gate else ""
    return f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n{gates}{dedent(body).lstrip()}"


def plan(body: str, gate: bool = True) -> Result:
    text = document(body, gate)
    return Result(make_plan(load_config(text=text, name="config.yaml"), BUILT_IN, hook_objects=()), text)


def warnings(result: Result) -> set[str]:
    """What was found beside the warning that this version lets no request wait."""
    return {code for code, _ in result.found}


def test_without_the_gate_there_are_no_queues():
    assert plan("plugins: []", gate=False).plan.flow_control is None


def test_everything_is_filled_in_with_its_reason():
    result = plan("plugins: []")

    settings = result.plan.flow_control
    assert settings.template == settings.negative_template == BandSettings(1_000_000_000, 5000, STRICT, FCFS)
    assert (settings.max_bytes, settings.max_requests, settings.ttl_seconds, settings.no_endpoint_ttl_seconds) == (0, 0, 60.0, 60.0)
    assert settings.usage_limit == "static-usage-limit-policy"
    assert settings.eviction is None
    assert settings.bands == {}
    assert result.announced(STRICT) == [f"added fairness policy '{STRICT}': flowControl.defaultPriorityBand has no fairnessPolicyRef"]
    assert result.announced(FCFS) == [f"added ordering policy '{FCFS}': flowControl.defaultPriorityBand has no orderingPolicyRef"]
    assert result.announced("static") == [
        "added usage limit policy 'static-usage-limit-policy': flowControl has no usageLimitPolicyPluginRef"
    ]
    assert result.announced("utilization-detector")


def test_quantities_bands_and_templates():
    settings = plan("""
        plugins: [{type: round-robin-fairness-policy, name: rr}, {type: edf-ordering-policy}]
        flowControl:
          maxBytes: 1Gi
          maxRequests: 1k
          priorityBands:
          - {priority: 5, maxBytes: 500Mi, fairnessPolicyRef: rr}
          - {priority: -9223372036854775808, maxRequests: 0}
          defaultPriorityBand: {orderingPolicyRef: edf-ordering-policy, maxBytes: 0}
          defaultNegativePriorityBand: {maxRequests: 10}
        """).plan.flow_control

    assert (settings.max_bytes, settings.max_requests) == (2**30, 1000)
    assert settings.band(5) == BandSettings(500 * 2**20, 5000, "rr", FCFS)
    assert settings.band(-(2**63)) == BandSettings(1_000_000_000, 5000, STRICT, FCFS)
    assert settings.band(0) == settings.band(7) == BandSettings(1_000_000_000, 5000, STRICT, "edf-ordering-policy")
    assert settings.band(-1) == BandSettings(1_000_000_000, 10, STRICT, FCFS)


def test_negative_priorities_default_to_the_template():
    settings = plan("""
        flowControl: {defaultPriorityBand: {maxRequests: 7}}
        """).plan.flow_control

    assert settings.band(-1).max_requests == 7


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", (60.0, 60.0)),
        ("defaultRequestTTL: 5s", (5.0, 5.0)),
        ("defaultRequestTTL: 0s", (0.0, 0.0)),
        ("noEndpointRequestTTL: 2m", (60.0, 120.0)),
        ("defaultRequestTTL: 0s, noEndpointRequestTTL: 1s", (0.0, 1.0)),
        ("defaultRequestTTL: 5s, noEndpointRequestTTL: 0s", (5.0, 0.0)),
    ],
)
def test_times_to_live(given, expected):
    settings = plan(f"flowControl: {{{given}}}").plan.flow_control

    assert (settings.ttl_seconds, settings.no_endpoint_ttl_seconds) == expected


def test_eviction_defaults_are_added_if_enabled():
    result = plan("flowControl: {enableEviction: true}")

    assert result.plan.flow_control.eviction == EvictionSettings("sheddable-eviction-filter", "priority-then-time-eviction-order-policy")
    assert result.announced("sheddable") == [
        "added eviction filter 'sheddable-eviction-filter': flowControl.enableEviction is on, and no eviction filter is defined"
    ]


def test_first_eviction_filter_is_used():
    result = plan("""
        plugins: [{type: sheddable-eviction-filter, name: first}, {type: sheddable-eviction-filter, name: second}]
        flowControl: {enableEviction: true}
        """)

    assert result.plan.flow_control.eviction.filter == "first"
    assert "'first' is the eviction filter, and there is one" in result.one("W0502").message


def test_eviction_policies_without_eviction_have_no_effect():
    result = plan("plugins: [{type: sheddable-eviction-filter}]")

    assert "'sheddable-eviction-filter' has no effect: flowControl.enableEviction is off" in result.one("W0502").message
    assert result.plan.flow_control.eviction is None


def test_a_defined_default_is_used_with_its_parameters():
    result = plan("plugins: [{type: static-usage-limit-policy, parameters: {threshold: 0.8}}]")

    assert result.plan.by_name["static-usage-limit-policy"].parameters.threshold == 0.8
    assert not result.announced("static")
    assert "W0301" not in warnings(result)


def test_a_default_may_be_named_without_being_defined():
    result = plan(f"flowControl: {{priorityBands: [{{priority: 1, fairnessPolicyRef: {STRICT}}}]}}")

    assert result.plan.flow_control.band(1).fairness == STRICT
    assert "W0301" not in warnings(result)


def test_a_policy_that_nothing_names_is_told():
    result = plan("plugins: [{type: round-robin-fairness-policy}]")

    assert "flowControl.priorityBands[].fairnessPolicyRef does not name it" in result.one("W0301").message


def test_a_priority_in_a_template_has_no_effect():
    found = plan("flowControl: {defaultPriorityBand: {priority: 3}}").found

    assert ("W0204", "priority") in found


def test_one_instance_may_choose_flows_and_watch_responses():
    result = plan("""
        plugins: [{type: program-aware-fairness}]
        flowControl: {defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}}
        """)

    settings = result.plan.flow_control
    assert settings.template.fairness == settings.negative_template.fairness == "program-aware-fairness"
    assert "program-aware-fairness" in result.plan.on_request[ResponseObserver]


SAMPLES = {
    "program-aware": """
        plugins:
        - type: program-aware-fairness
          parameters: {strategy: las, lasWeightService: 0.8, lasWeightHeadWait: 0.2, lasHalfLifeSeconds: 60}
        - type: queue-scorer
        - type: max-score-picker
        - type: single-profile-handler
        flowControl: {defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}}
        schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
        """,
    "soft ceilings": """
        plugins:
        - type: queue-scorer
        - type: kv-cache-utilization-scorer
        - type: prefix-cache-scorer
        - type: soft-reflective-ceiling-policy
        flowControl: {usageLimitPolicyPluginRef: soft-reflective-ceiling-policy}
        schedulingProfiles:
        - name: default
          plugins:
          - {pluginRef: queue-scorer, weight: 2}
          - {pluginRef: kv-cache-utilization-scorer, weight: 2}
          - {pluginRef: prefix-cache-scorer, weight: 3}
        """,
    "holdback and eviction": """
        plugins:
        - {type: priority-holdback-policy, parameters: {minCeiling: 0.5, domain: value}}
        - {type: slo-deadline-ordering-policy}
        - {type: concurrency-detector, parameters: {maxConcurrency: 64, concurrencyMode: hybrid}}
        flowControl:
          enableEviction: true
          usageLimitPolicyPluginRef: priority-holdback-policy
          saturationDetector: {pluginRef: concurrency-detector}
          defaultNegativePriorityBand: {maxRequests: 100, orderingPolicyRef: slo-deadline-ordering-policy}
        """,
}
"""In the manner of llm-d's own samples."""


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("version", ["llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"])
def test_samples_with_the_gate_are_accepted(name, version):
    text = document(SAMPLES[name]).replace("llm-d.ai/v1", version)
    outcome = make_plan(load_config(text=text, name="config.yaml"), BUILT_IN, hook_objects=())

    assert outcome.plan is not None, render_text(outcome.diagnostics, {"config.yaml": text})
    assert outcome.plan.flow_control is not None


MISTAKES = {
    "flow-control-references": """
        plugins:
        - {type: round-robin-fairness-policy, name: round-robin}
        - type: queue-scorer
        flowControl:
          priorityBands:
          - {priority: 1, fairnessPolicyRef: rond-robin}
          - {priority: 2, orderingPolicyRef: round-robin}
          - {priority: 3, orderingPolicyRef: edf-ordering-policy}
          usageLimitPolicyPluginRef: queue-scorer
        """,
    "flow-control-values": """
        flowControl:
          maxBytes: -1
          priorityBands:
          - {priority: 1, maxRequests: "-5"}
          - {priority: 2}
          - {priority: 2}
          defaultRequestTTL: -1s
        """,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_as_people_read_them(name):
    compare(name, plan(MISTAKES[name]))


def test_section_without_the_gate_gets_one_warning():
    result = plan(
        """
        plugins: [{type: round-robin-fairness-policy}]
        flowControl: {defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef: nowhere}}
        """,
        gate=False,
    )

    assert result.plan.flow_control is None
    compare("flow-control-without-gate", result)


def compare(name: str, result: Result) -> None:
    """Against the golden file; ENDPICK_UPDATE_GOLDEN=1 writes it anew."""
    text = render_text(result.outcome.diagnostics, {"config.yaml": result.text}).replace(f"endpick {__version__}", "endpick VERSION")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_what_is_named_is_bound_once():
    settings = plan("""
        plugins: [{type: program-aware-fairness}]
        flowControl:
          enableEviction: true
          priorityBands: [{priority: 1, fairnessPolicyRef: program-aware-fairness}, {priority: 2}]
        """).plan.flow_control
    named = {band.fairness for band in settings.all_bands} | {FCFS, settings.usage_limit}
    named |= {settings.eviction.filter, settings.eviction.ordering}
    targets = {candidate.type: candidate for candidate in BUILT_IN}
    instances = {name: instance(_class(targets[name].target), name) for name in named}

    bound = bind_flow_control(settings, instances, Recording())

    assert bound.of_band(2).fairness.choose.instance.name == bound.of_band(-1).fairness.choose.instance.name == STRICT
    assert bound.of_band(2).fairness.dispatched is None
    assert bound.of_band(1).fairness.choose.instance.name == "program-aware-fairness"
    assert bound.of_band(1).fairness.dispatched is not None
    assert bound.of_band(0).ordering.instance.name == FCFS
    assert bound.ceilings.instance.name == "static-usage-limit-policy"
    assert bound.eviction.is_evictable.instance.name == "sheddable-eviction-filter"
    with pytest.raises(TypeError, match="is no FairnessPolicy"):
        bind_flow_control(settings, {**instances, STRICT: instances[FCFS]}, Recording())


def _class(target: str) -> type:
    module, _, name = target.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


def test_the_plan_shows_what_waits(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        document("""
        flowControl:
          maxRequests: 100
          defaultRequestTTL: 0s
          noEndpointRequestTTL: 5s
          priorityBands: [{priority: -1, maxBytes: 1k, defaultRequestTTL: 90s}]
        """)
    )

    shown = CliRunner(env={"COLUMNS": "200"}).invoke(plan_command, [str(file)]).output

    section = shown.partition("waiting\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split() for line in section[:4]] == [
        ["priority", "bytes", "requests", "fairness", "ordering", "at", "most", "for"],
        ["-1", "1000", "5000", STRICT, FCFS, "90", "s"],
        ["others", "1000000000", "5000", STRICT, FCFS, "any", "time"],
        ["others", "below", "0", "1000000000", "5000", STRICT, FCFS, "any", "time"],
    ]
    assert "at most for: any time, 5 s without endpoints" in shown
    assert "in all:      any bytes, 100 requests" in shown


def test_programs_read_the_same():
    shown = document_of(plan("flowControl: {enableEviction: true, priorityBands: [{priority: 1}, {priority: 3}]}").plan)

    assert list(shown.flow_control.bands) == ["3", "1"]
    assert shown.flow_control.template.ordering == FCFS
    assert shown.flow_control.eviction_filter == "sheddable-eviction-filter"
    assert document_of(plan("plugins: []", gate=False).plan).flow_control is None


@pytest.mark.parametrize(
    ("plugins", "name", "found"),
    [
        ("", "strict-band-selection-policy", []),
        ("{type: strict-band-selection-policy}", "strict-band-selection-policy", []),
        ("{type: strict-band-selection-policy, name: mine}", "mine", []),
        ("", "weighted", [("E0501", "weighted")]),
        ("{type: fcfs-ordering-policy}", "fcfs-ordering-policy", [("E0503", "fcfs-ordering-policy")]),
        ("{type: thunder-agent, name: mine}", "mine", [("E0323", "thunder-agent")]),
    ],
)
def test_only_the_default_band_selection_is_accepted(plugins, name, found):
    result = plan(f"plugins: [{plugins}]\nflowControl: {{bandSelectionPolicyPluginRef: {name}}}")

    assert [one for one in result.found if one[0][0] == "E"] == found


def test_a_template_and_a_band_may_have_their_own_time_limit():
    settings = plan("""
        flowControl:
          defaultPriorityBand: {defaultRequestTTL: 7s}
          priorityBands: [{priority: 1, defaultRequestTTL: 0s}, {priority: 2}]
        """).plan.flow_control

    assert [settings.ttl_of(settings.band(priority)) for priority in (0, -1, 1, 2)] == [7.0, 7.0, 0.0, 60.0]
