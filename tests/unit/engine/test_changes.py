"""Hashes of plans, and the differences between two plans in words."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from endpick.api import Parameters
from endpick.config import load_config
from endpick.engine.changes import MASK, changes, parameters_of, plan_hash
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan

INSTALLED = discover()
TESTS = Path(__file__).parents[2]
BASE = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: static-discovery, parameters: {endpoints: [{name: a, address: 10.0.0.1, port: 8000}]}}
- {type: queue-scorer}
- {type: load-aware-scorer, parameters: {threshold: 128}}
- {type: decode-filter}
- {type: prefill-filter, name: calm}
- {type: max-score-picker}
- {type: metrics-data-source}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: calm}
  - {pluginRef: queue-scorer, weight: 3}
  - {pluginRef: load-aware-scorer, weight: 2}
  - {pluginRef: max-score-picker}
dataLayer: {discovery: {endpoints: {pluginRef: static-discovery}}}
featureGates: [flowControl]
flowControl: {maxRequests: 100}
objectives: [{name: chat, priority: 1}]
"""


def planned(text: str) -> Plan:
    outcome = make_plan(load_config(text=text, name="config.yaml"), INSTALLED)
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


def edited(*edits: tuple[str, str]) -> Plan:
    text = BASE
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return planned(text)


OLD = planned(BASE)
TOP = "schedulingProfiles:\n"
STATIC = "type: static-discovery, parameters: {endpoints: [{name: a, address: 10.0.0.1, port: 8000}]}"
PICKER = "  - {pluginRef: max-score-picker}\n"
SCORERS = "  - {pluginRef: queue-scorer, weight: 3}\n  - {pluginRef: load-aware-scorer, weight: 2}\n"
FILTERS = "  - {pluginRef: decode-filter}\n  - {pluginRef: calm}\n"


def reversed_lines(text: str) -> tuple[str, str]:
    return text, "".join(reversed(text.splitlines(keepends=True)))


ROUTING = [
    ([("weight: 3", "weight: 0.5")], ["queue-scorer: weight 3 → 0.5 in profile default"]),
    ([("threshold: 128", "threshold: 64")], ["load-aware-scorer: threshold 128 → 64"]),
    ([(", parameters: {threshold: 128}", ""), (", weight: 2", "")], ["load-aware-scorer: weight 2 → 1 in profile default"]),
    (
        [(TOP, f"- {{type: prefix-cache-scorer}}\n{TOP}"), (PICKER, f"  - {{pluginRef: prefix-cache-scorer}}\n{PICKER}")],
        ["prefix-cache-scorer added to profile default", "approx-prefix-cache-producer added"],
    ),
    (
        [("  - {pluginRef: queue-scorer, weight: 3}\n", ""), ("- {type: queue-scorer}\n", "")],
        ["queue-scorer removed from profile default"],
    ),
    (
        [("pluginRef: max-score-picker", "pluginRef: random-picker"), ("type: max-score-picker", "type: random-picker")],
        ["picker max-score-picker → random-picker in profile default"],
    ),
    ([reversed_lines(FILTERS)], ["filters: order decode-filter, calm → calm, decode-filter in profile default"]),
    ([("type: prefill-filter", "type: encode-filter")], ["calm: type prefill-filter → encode-filter"]),
    (
        [
            (STATIC, "type: dns-discovery, parameters: {hostname: a, port: 80}"),
            ("{pluginRef: static-discovery}", "{pluginRef: dns-discovery}"),
        ],
        ["discovery static-discovery → dns-discovery"],
    ),
    ([("port: 8000", "port: 8001")], ["static-discovery: endpoints[0].port 8000 → 8001"]),
    ([("name: calm}", "name: calm, onFault: FailOpen}")], ["calm: onFault refuse → skip"]),
    (
        [("- name: default\n", "- name: main\n")],
        [
            "profile default removed",
            "profile main added: decode-filter, calm, queue-scorer, load-aware-scorer, max-score-picker",
        ],
    ),
]
OTHER = [
    ([reversed_lines(SCORERS)], ["scorers: order queue-scorer, load-aware-scorer → load-aware-scorer, queue-scorer in profile default"]),
    ([("maxRequests: 100", "maxRequests: 90")], ["flowControl: maxRequests 100 → 90"]),
    ([("priority: 1}", "priority: 2}")], ["priority of objective: chat 1 → 2"]),
    ([("data-source}", "data-source, parameters: {path: /stats}}")], ["metrics-data-source: path /metrics → /stats"]),
    (
        [("[flowControl]\nflowControl: {maxRequests: 100}", "[]")],
        [
            "global-strict-fairness-policy removed",
            "fcfs-ordering-policy removed",
            "static-usage-limit-policy removed",
            "flowControl on → off",
        ],
    ),
]
SAME = [
    [("plugins:\n- {type: static", "# a comment\nplugins:\n\n- {type: static")],
    [(", parameters: {threshold: 128}", "")],
    [reversed_lines("- {type: queue-scorer}\n- {type: load-aware-scorer, parameters: {threshold: 128}}\n")],
    [("- {type: max-score-picker}\n", ""), (PICKER, "")],
]
CASES = [*((*case, True) for case in ROUTING), *((*case, False) for case in OTHER), *((edits, [], False) for edits in SAME)]


@pytest.mark.parametrize(("edits", "expected", "routes"), CASES, ids=range(len(CASES)))
def test_changes_are_sentences(edits, expected, routes):
    new = edited(*edits)

    found = changes(OLD, new)

    assert [str(change) for change in found] == expected
    assert {change.routes for change in found} <= {routes}
    assert (plan_hash(OLD) == plan_hash(new)) == (not expected)


def test_hashes_are_equal_exactly_if_nothing_changed():
    plans = [edited(*edits) for edits, *_ in CASES]
    hashes = [plan_hash(plan) for plan in plans]

    for (old, old_hash), (new, new_hash) in itertools.combinations_with_replacement(zip(plans, hashes, strict=True), 2):
        found = changes(old, new)
        assert (old_hash == new_hash) == (not found), [str(change) for change in found]


WEIGHTS = st.floats(0, 100).map(lambda weight: round(weight, 3))


@settings(max_examples=15)
@given(st.permutations(["queue-scorer, weight: 3", "load-aware-scorer, weight: 2"]), WEIGHTS, WEIGHTS, WEIGHTS)
def test_one_changed_weight_is_one_change(scorers, kept, before, after):
    unchanged, changed = ((one, one.partition(":")[0]) for one in scorers)
    old, new = (edited((unchanged[0], f"{unchanged[1]}: {kept}"), (changed[0], f"{changed[1]}: {weight}")) for weight in (before, after))

    assert changes(old, old) == changes(new, new) == ()
    found = changes(old, new)
    assert len(found) == (before != after)
    assert (plan_hash(old) == plan_hash(new)) == (not found)


def test_changes_of_routing_come_first():
    found = changes(OLD, edited(("maxRequests: 100", "maxRequests: 90"), ("weight: 2", "weight: 7")))

    assert [(change.subject, change.routes) for change in found] == [("load-aware-scorer", True), ("flowControl", False)]


class Confidential(Parameters):
    apiKey: str = "first"  # noqa: N815 - as an author of parameters writes it
    pin: SecretStr = SecretStr("1234")
    url: str = "https://user:first@metrics"
    names: frozenset[str] = frozenset("abc")
    max_tokens: str = "many"


class Stubborn(Parameters):
    def model_dump(self, **_):
        raise RuntimeError("not today")


def with_parameters(parameters: Parameters) -> Plan:
    first, *others = OLD.instances
    return replace(OLD, instances=(replace(first, parameters=parameters), *others))


def test_secrets_count_and_are_masked():
    old = with_parameters(Confidential())
    new = with_parameters(Confidential(apiKey="second", pin=SecretStr("4321"), url="https://user:second@metrics"))

    assert [str(change) for change in changes(old, new)] == [f"static-discovery: {name} changed" for name in ("apiKey", "pin", "url")]
    assert plan_hash(old) != plan_hash(new)
    assert parameters_of(new.instances[0]) == {
        "apiKey": MASK,
        "pin": MASK,
        "url": f"https://{MASK}@metrics",
        "names": ["a", "b", "c"],
        "max_tokens": "many",
    }


def test_parameters_that_cannot_be_dumped_are_shown_as_written():
    assert parameters_of(with_parameters(Stubborn()).instances[0]) == OLD.instances[0].place.block()


def test_an_upgraded_distribution_is_one_change():
    new = replace(
        OLD,
        instances=tuple(
            replace(one, loaded=replace(one.loaded, candidate=replace(one.loaded.candidate, version="9.0"))) for one in OLD.instances
        ),
    )
    (found,) = changes(OLD, new)

    assert str(found).endswith(f": endpick {OLD.instances[0].loaded.candidate.version} → 9.0")
    assert found.subject.split(", ") == [one.name for one in OLD.instances]


@pytest.mark.long
def test_the_hash_is_the_same_in_another_process():
    code = "from unit.engine.test_changes import *; print(plan_hash(with_parameters(Confidential())))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=TESTS)

    assert made.stdout.strip() == plan_hash(with_parameters(Confidential()))
