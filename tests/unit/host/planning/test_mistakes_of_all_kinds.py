"""Mistakes in data are found in the same run as unknown plugins and wrong parameters; nothing is reported twice."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.diagnostics import Severity
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
BOTH = "{type: approx-prefix-cache-producer}, {type: burst-prefix-cache-producer}"
SCORER = "{{type: prefix-cache-scorer, parameters: {}}}"
CLASH = ["E0605", "E0605"]  # two keys have two producers
NOWHERE = ["E0601", "E0601"]
CASES = {
    "two producers": (f"{BOTH}, {SCORER.format('{}')}", CLASH),
    "and an unknown plugin": (f"{BOTH}, {SCORER.format('{}')}, {{type: queue-scorrer}}", ["E0301", *CLASH]),
    "and an unknown parameter": (f"{BOTH}, {SCORER.format('{}')}, {{type: queue-scorer, parameters: {{x: 1}}}}", ["E0402", *CLASH]),
    "and all of them": (
        f"{BOTH}, {SCORER.format('{matchLengthWeight: x}')}, {{type: queue-scorrer}}, {{type: queue-scorer, parameters: {{x: 1}}}}",
        ["E0301", "E0401", "E0402", *CLASH],
    ),
    "producer with a wrong value": (
        "{type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 0}}, {type: burst-prefix-cache-producer}, "
        + SCORER.format("{}"),
        ["E0401", *CLASH],
    ),
    "consumer with a wrong value": (f"{BOTH}, {SCORER.format('{matchLengthWeight: x}')}", ["E0401", *CLASH]),
    "consumer with an unknown parameter": (f"{BOTH}, {SCORER.format('{x: 1}')}", ["E0402", *CLASH]),
    "the wrong value decides on the key": (f"{BOTH}, {SCORER.format('{prefixMatchInfoProducerName: 5}')}", ["E0401"]),
    "the unknown parameter meant the key": (f"{BOTH}, {SCORER.format('{prefixMatchInfoProducrName: a}')}", ["E0402"]),
    "no producer": (SCORER.format("{prefixMatchInfoProducerName: p}"), NOWHERE),
    "no producer for a faulty consumer": (SCORER.format("{prefixMatchInfoProducerName: p, x: 1}"), ["E0402", *NOWHERE]),
    "the producer is unknown": ("{type: acme.producer, name: p}, " + SCORER.format("{prefixMatchInfoProducerName: p}"), ["E0301"]),
    "the producer is faulty": (
        "{type: approx-prefix-cache-producer, name: p, parameters: {lruCapacityPerServer: 0}}, "
        + SCORER.format("{prefixMatchInfoProducerName: p}"),
        ["E0401"],
    ),
}


@pytest.mark.parametrize(("plugins", "expected"), CASES.values(), ids=CASES)
def test_data_mistakes_join_those_of_types_and_parameters(plugins, expected):
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer}]}]\n"

    outcome = make_plan(load_config(text=f"{HEADER}plugins: [{plugins}]\n{profile}"), discover())

    assert sorted(one.code.name for one in outcome.diagnostics if one.code.severity is Severity.ERROR) == sorted(expected)
