"""What llm-d does with some documents by accident, and what endpick makes of them: see docs/explanation/compatibility.md."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import PlanOutcome
from endpick.host.planning.planner import make_plan

HEADER = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
DISCOVERY = "- {type: static-discovery, parameters: {endpoints: [{name: a, address: 127.0.0.1, port: 1}]}}\n"


def planned(plugins: str, *, layer: str = "", profiles: str = "") -> PlanOutcome:
    discovery = "dataLayer:\n  discovery: {endpoints: {pluginRef: static-discovery}}\n"
    text = f"{HEADER}plugins:\n{DISCOVERY}{plugins}{discovery}{layer}{profiles}"
    return make_plan(load_config(text=text, name="config.yaml"), discover())


def codes(outcome: PlanOutcome) -> list[str]:
    return [one.code.name for one in outcome.diagnostics]


def profile(*steps: str) -> str:
    return f"schedulingProfiles:\n- {{name: default, plugins: [{', '.join(steps)}]}}\n"


def test_renamed_metrics_source_is_recognised():
    outcome = planned(
        "- {name: mine, type: metrics-data-source}\n- {type: core-metrics-extractor}\n- {type: queue-scorer}\n",
        layer="  sources: [{pluginRef: mine, extractors: [{pluginRef: core-metrics-extractor}]}]\n",
    )

    assert outcome.plan is not None
    assert [source.instance for source in outcome.plan.sources] == ["mine"]


def test_profile_without_picker_takes_the_first_one():
    steps = profile("{pluginRef: queue-scorer}")
    outcome = planned("- {type: queue-scorer}\n- {type: weighted-random-picker}\n- {type: max-score-picker}\n", profiles=steps)

    assert outcome.plan is not None
    assert outcome.plan.profiles[0].picker == "weighted-random-picker"
    assert codes(outcome) == ["W0301"]


def test_what_is_no_extractor_is_named_itself():
    outcome = planned(
        "- {type: metrics-data-source}\n- {type: queue-scorer}\n",
        layer="  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: queue-scorer}]}]\n",
    )

    (error,) = [one for one in outcome.diagnostics if one.code.name == "E0503"]
    assert "'queue-scorer'" in error.message
    assert "metrics-data-source" not in error.message


def test_several_prefix_producers_keep_their_names():
    outcome = planned(
        "- {name: short, type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 10}}\n"
        "- {name: long, type: approx-prefix-cache-producer}\n"
        "- {name: of-short, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: short}}\n"
        "- {name: of-long, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: long}}\n"
        "- {type: queue-scorer}\n",
        profiles=profile("{pluginRef: of-short}", "{pluginRef: of-long}", "{pluginRef: queue-scorer}"),
    )

    assert outcome.plan is not None
    read = {(one.consumer, one.producer) for one in outcome.plan.graph.subscriptions if one.producer in ("short", "long")}
    assert read == {("of-short", "short"), ("of-long", "long")}


@pytest.mark.parametrize("plugin_type", ["decode-filter", "prefill-filter", "encode-filter", "static-usage-limit-policy"])
def test_filters_and_policies_are_called_by_their_types(plugin_type: str):
    outcome = planned(f"- {{type: {plugin_type}}}\n- {{type: queue-scorer}}\n")

    assert outcome.plan is not None
    assert outcome.plan.by_name[plugin_type].loaded.type == plugin_type


def test_a_negative_weight_is_taken_as_written_and_warned_of():
    outcome = planned("- {type: queue-scorer}\n", profiles=profile("{pluginRef: queue-scorer, weight: -1}"))

    assert outcome.plan is not None
    assert outcome.plan.profiles[0].scorers[0].weight == -1
    assert codes(outcome) == ["W0207"]


def test_an_algorithm_of_the_release_notes_is_told_its_name():
    parameters = "{tokenProcessorConfig: {hashAlgorithm: xxhash}}"
    outcome = planned(f"- {{type: precise-prefix-cache-scorer, parameters: {parameters}}}\n- {{type: queue-scorer}}\n")

    assert "E0401" in codes(outcome)
    assert any("'xxh64'" in one.message for one in outcome.diagnostics)
