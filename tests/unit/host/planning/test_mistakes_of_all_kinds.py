"""Mistakes in data are found in the same run as unknown plugins and wrong parameters; nothing is reported twice."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.diagnostics import Severity
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan

HEADER = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
BOTH = "{type: inflight-load-producer, name: one}, {type: inflight-load-producer, name: two}"
SCORER = "{{type: active-request-scorer, parameters: {}}}"
CLASH = ["E0605", "E0605"]  # two keys have two producers
NOWHERE = ["E0601"]
CASES = {
    "two producers": (f"{BOTH}, {SCORER.format('{}')}", CLASH),
    "and an unknown plugin": (f"{BOTH}, {SCORER.format('{}')}, {{type: queue-scorrer}}", ["E0301", *CLASH]),
    "and an unknown parameter": (f"{BOTH}, {SCORER.format('{}')}, {{type: queue-scorer, parameters: {{x: 1}}}}", ["E0402", *CLASH]),
    "and all of them": (
        f"{BOTH}, {SCORER.format('{idleThreshold: x}')}, {{type: queue-scorrer}}, {{type: queue-scorer, parameters: {{x: 1}}}}",
        ["E0301", "E0401", "E0402", *CLASH],
    ),
    "producer with a wrong value": (
        "{type: inflight-load-producer, name: one, parameters: {maxEstimatedOutputTokens: -1}}, {type: inflight-load-producer, name: two}, "
        + SCORER.format("{}"),
        ["E0401", *CLASH],
    ),
    "consumer with a wrong value": (f"{BOTH}, {SCORER.format('{idleThreshold: x}')}", ["E0401", *CLASH]),
    "consumer with an unknown parameter": (f"{BOTH}, {SCORER.format('{x: 1}')}", ["E0402", *CLASH]),
    "the wrong value decides on the key": (f"{BOTH}, {SCORER.format('{inFlightLoadProducerName: 5}')}", ["E0401", *CLASH]),
    "the unknown parameter meant the key": (f"{BOTH}, {SCORER.format('{inFlightLoadProducrName: a}')}", ["E0402", *CLASH]),
    "no producer": (SCORER.format("{inFlightLoadProducerName: p}"), NOWHERE),
    "no producer for a faulty consumer": (SCORER.format("{inFlightLoadProducerName: p, x: 1}"), ["E0402", *NOWHERE]),
    "the producer is unknown": ("{type: acme.producer, name: p}, " + SCORER.format("{inFlightLoadProducerName: p}"), ["E0301"]),
    "the producer is faulty": (
        "{type: inflight-load-producer, name: p, parameters: {maxEstimatedOutputTokens: -1}}, "
        + SCORER.format("{inFlightLoadProducerName: p}"),
        ["E0401"],
    ),
}


@pytest.mark.parametrize(("plugins", "expected"), CASES.values(), ids=CASES)
def test_data_mistakes_join_those_of_types_and_parameters(plugins, expected):
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]\n"

    outcome = make_plan(load_config(text=f"{HEADER}plugins: [{plugins}]\n{profile}"), discover())

    assert sorted(one.code.name for one in outcome.diagnostics if one.code.severity is Severity.ERROR) == sorted(expected)
