"""Everything that endpick adds to a document as llm-d does: `endpick plan` says each with its reason."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
NO_PARSER = "requestHandler.parsers names no parser"
ALWAYS = {
    f"added parser 'openai-parser': {NO_PARSER}",
    f"added parser 'anthropic-parser': {NO_PARSER}",
    f"added parser 'vllmhttp-parser': {NO_PARSER}",
    f"added parser 'passthrough-parser': {NO_PARSER}",
    "added saturation detector 'utilization-detector': no saturation detector is named",
    "added candidate filter 'endpoint-health': a model server that fails at once or is dead looks idle, and would attract requests",
    "bound collector 'endpoint-health' to data source 'metrics-data-source': no source feeds collector 'endpoint-health'",
    (
        "added data source 'metrics-data-source' with collector 'core-metrics-extractor': "
        "dataLayer.injectDefaults is not false, and no source collects metrics"
    ),
    "added profile handler 'single-profile-handler': there is one scheduling profile and no profile handler",
}
PROFILE = (
    "added scheduling profile 'default' with {}: the document has no schedulingProfiles, "
    "so every filter, scorer and picker it defines takes part"
)
NO_PICKER = "added picker 'max-score-picker' to profile '{}': no picker is defined"
ONE = "schedulingProfiles: [{name: one, plugins: ["
CASES = {
    "plugins: []": ALWAYS | {PROFILE.format("no instance"), NO_PICKER.format("default")},
    "plugins: [{type: queue-scorer}]": ALWAYS
    | {
        PROFILE.format("queue-scorer"),
        NO_PICKER.format("default"),
        "weight 1 for 'queue-scorer' in profile 'default': none is given",
    },
    "plugins: [{type: random-picker}]\nschedulingProfiles: [{name: one}]": ALWAYS
    | {"added picker 'random-picker' to profile 'one': the profile names no picker"},
    "schedulingProfiles: [{name: one}]\ndataLayer: {injectDefaults: false}": {
        *(told for told in ALWAYS if "metrics-data-source" not in told and "endpoint-health" not in told),
        NO_PICKER.format("one"),
    },
    "schedulingProfiles: [{name: one}]\nrequestHandler: {parsers: [{pluginRef: sglanghttp-parser}]}": {
        *(told for told in ALWAYS if "parser" not in told),
        NO_PICKER.format("one"),
        "added parser 'sglanghttp-parser': it is named at config.yaml:4:40 and not defined under plugins",
    },
    "schedulingProfiles: [{name: one}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}": {
        *(told for told in ALWAYS if "detector" not in told),
        NO_PICKER.format("one"),
        "added saturation detector 'concurrency-detector': it is named at config.yaml:4:47 and not defined under plugins",
        "added producer 'inflight-load-producer': 'concurrency-detector' needs 'inflight-requests' and nothing else produces it",
    },
    f"plugins: [{{type: prefix-cache-scorer}}]\n{ONE}{{pluginRef: prefix-cache-scorer, weight: 2}}]}}]": ALWAYS
    | {
        NO_PICKER.format("one"),
        "added producer 'approx-prefix-cache-producer': 'prefix-cache-scorer' needs 'prefix-blocks' and nothing else produces it",
    },
    f"plugins: [{{type: topology-affinity-scorer}}]\n{ONE}{{pluginRef: topology-affinity-scorer}}]}}]": ALWAYS
    | {
        NO_PICKER.format("one"),
        "weight 1 for 'topology-affinity-scorer' in profile 'one': none is given",
    },
}


@pytest.mark.parametrize(("body", "told"), CASES.items(), ids=CASES)
def test_each_default_is_announced_with_its_reason(body, told):
    outcome = make_plan(load_config(text=f"{HEAD}{body}\n", name="config.yaml"), discover())
    assert outcome.plan is not None, outcome.diagnostics
    assert {one.message for one in outcome.plan.announcements} == told


def test_the_verb_prints_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(f"{HEAD}plugins: []\n")
    printed = CliRunner().invoke(main, ["plan", "config.yaml"]).output
    filled_in = {line.strip() for line in printed.split("\nfilled in\n")[1].splitlines()} - {""}
    assert CASES["plugins: []"] <= filled_in
