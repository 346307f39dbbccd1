"""llm-d's own sample configurations, what charts write, and the built-in default: they plan, build and compile as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endpick.api import WAITING_QUEUE_SIZE, DataProducer, Endpoint, PluginContext
from endpick.api.keys import CACHE_BLOCK_SIZE
from endpick.config import load_config
from endpick.config.load import documents_of
from endpick.config.model import ALPHA_VERSIONS
from endpick.data.table import EndpointTable
from endpick.diagnostics import has_errors
from endpick.engine.building import build_plan, compile_collection, compile_plan, declared_keys
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick.host.telemetry import NullTelemetry
from endpick_lab.compare import path_of

DATA = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
CONFIGS = sorted((DATA / "epp-configs").glob("*.yaml"))
NEWER = sorted((Path(__file__).parents[2] / "fixtures/configs").glob("*.yaml"))
"""llm-d's samples of August 2026, and what the Helm charts write."""

WARNED_OF = {
    "burst-prefix-cache": ["W0309"],
    "chart-latency-predictor": ["W0301", "W0301", "W0301", "W0502"],
    "chart-payload-agnostic": ["W0309"],
    "gie-chart-latency-predictor": ["W0301", "W0301", "W0301", "W0502"],
    "gie-chart-triton": ["W0203"],
    "gpu": ["W0309"],
    "mm-embeddings-cache": ["W0401", "W0401"],
    "pd-topology": ["W0309"],
    "precise-prefix-cache": ["W0401"],
    "soft-reflective-ceiling": ["W0309"],
}
"""What a file of `NEWER` is warned of; others are not warned."""


def test_llm_ds_samples_are_there_or_missed() -> None:
    if not CONFIGS:
        pytest.skip("needs llm-d's sample configurations; set ENDPICK_TEST_DATA")
    assert len(CONFIGS) >= 13


@pytest.mark.parametrize("path", [*CONFIGS, *NEWER], ids=lambda path: path.stem)
def test_sample_plans_and_builds(path: Path) -> None:
    loaded = load_config(path)
    assert loaded.config is not None
    offered = {candidate.type for candidate in discover()}
    missing = [spec.type for spec in loaded.config.plugins if spec.type not in offered]

    outcome = make_plan(loaded, discover(), endpoints_file=Path("pool.yaml"))

    errors = [(one.code.name, one.plugin.type if one.plugin else "") for one in outcome.diagnostics if one.is_error]
    assert errors == [("E0301", plugin_type) for plugin_type in missing]
    if missing:
        pytest.skip(f"only {', '.join(missing)} is not installed")
    plan = outcome.plan
    assert plan is not None
    assert plan.discovery is not None
    if path in NEWER:
        warnings = sorted(one.code.name for one in outcome.diagnostics if one.code.name.startswith("W") and one.code.name != "W0204")
        assert [code for code in warnings if code != "W0202"] == WARNED_OF.get(path.stem, [])
        assert warnings.count("W0202") == (loaded.config.api_version in ALPHA_VERSIONS)
    announced = [one.message for one in plan.announcements]
    added = [one for one in plan.instances if one.path is None]
    assert [one.name for one in added if not one.reason or not any(f"'{one.name}'" in message for message in announced)] == []
    assert isinstance(build_plan(plan, lambda _: PluginContext()), dict)


def test_llm_ds_default_compiles_to_llm_ds_pipeline() -> None:
    outcome = make_plan(load_config(path_of("llm-d")), discover())
    assert outcome.plan is not None
    plan = outcome.plan

    built = build_plan(plan, lambda _: PluginContext())
    assert isinstance(built, dict)
    pipeline = compile_plan(plan, built, NullTelemetry())
    collection = compile_collection(plan, built)

    assert not has_errors(outcome.diagnostics)
    assert [(scorer.instance, scorer.weight) for scorer in plan.profiles[0].scorers] == [
        ("queue-scorer", 2.0),
        ("kv-cache-utilization-scorer", 2.0),
        ("prefix-cache-scorer", 3.0),
    ]
    assert plan.profiles[0].picker == "max-score-picker"
    assert plan.handler == "single-profile-handler"
    assert plan.detector == "utilization-detector"
    assert plan.parsers == ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
    assert plan.on_request[DataProducer] == ("approx-prefix-cache-producer",)
    assert list(pipeline.scheduler.profiles) == ["default"]
    assert [(one.source.name, [collector.name for collector in one.collectors]) for one in collection.bindings] == [
        ("metrics-data-source", ["core-metrics-extractor", "endpoint-health"])
    ]


def test_without_a_configuration_the_predicted_latency_decides() -> None:
    plan = make_plan(load_config(), discover()).plan
    assert plan is not None
    assert [(scorer.instance, scorer.weight) for scorer in plan.profiles[0].scorers] == [("predicted-latency", 1.0)]
    assert plan.on_request[DataProducer] == ("approx-prefix-cache-producer",)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("plugins: []", 2.0),
        ("plugins: [{type: queue-scorer, maxAge: 800ms}]", 0.8),
        ("plugins: [{type: queue-scorer, maxAge: 0s}]", 2.0),
        ("plugins: [{type: silent-endpoint-screener, parameters: {tolerance: 700ms}}]", 0.7),
        ("plugins: []\nobjectives: [{name: batch, priority: -1}]", 0.2),
        ("plugins: []\nobjectives: [{name: chat, priority: 1}]", 2.0),
        ("plugins: [{type: utilization-detector}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: utilization-detector}]}]", 0.2),
    ],
)
def test_strictest_instance_decides_the_tolerated_age(text: str, age: float) -> None:
    loaded = load_config(text=f"apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n{text}\n", name="config.yaml")
    outcome = make_plan(loaded, discover())
    assert outcome.plan is not None, outcome.diagnostics
    built = build_plan(outcome.plan, lambda _: PluginContext())
    assert isinstance(built, dict)

    assert compile_collection(outcome.plan, built).tolerated_age_seconds == age


def test_table_has_a_column_for_every_written_key() -> None:
    plan = make_plan(load_config(), discover()).plan
    assert plan is not None

    table = EndpointTable(lambda: 0.0, declared_keys(plan))
    table.replace_all([Endpoint("a", "127.0.0.1", 8000)])

    assert {CACHE_BLOCK_SIZE.name, WAITING_QUEUE_SIZE.name} <= set(table.generation.columns)


OCTOBER = sorted((DATA / "epp-configs-2026-10").glob("*.yaml"))
OTHER_MISTAKES = {"agentic-serving-gpu.values": {"E0501"}}
"""A reference to nothing, which llm-d refuses, too."""


@pytest.mark.skipif(not OCTOBER, reason="needs llm-d's configurations; set ENDPICK_TEST_DATA")
@pytest.mark.parametrize("path", OCTOBER, ids=lambda path: path.stem)
def test_a_configuration_of_october_runs_or_names_a_branch(path: Path) -> None:
    (document,) = documents_of(path.read_text(encoding="utf-8"))
    values = document["router"]["epp"].get("pluginsCustomConfig", {}).values() if path.stem.endswith("values") else [path.read_text()]

    found = [one for text in values for one in make_plan(load_config(text=text), discover(), endpoints_file=Path("pool.yaml")).diagnostics]

    assert {one.code.name for one in found if one.is_error} <= {"E0323", "E0408"} | OTHER_MISTAKES.get(path.stem, set())
