"""From a plan to what serves: everything bound in the order the plan gives."""

from __future__ import annotations

from endpick.api import DataProducer, PluginContext
from endpick.engine.building import build_plan, compile_collection, compile_plan, compile_profiles, declared_keys
from endpick.host.planning.plan import Plan
from endpick.host.telemetry import NullTelemetry
from unit.host.planning.planned import plan

BODY = """
    plugins:
      - {type: match-scorer}
      - {type: queue-scorer}
      - {type: even-filter}
      - {type: doorman}
      - {type: diary}
      - {type: every-profile-handler}
      - {type: any-collector}
      - {type: event-source}
    schedulingProfiles:
      - {name: a, plugins: [{pluginRef: even-filter}, {pluginRef: match-scorer, weight: 2}, {pluginRef: queue-scorer, weight: 3}]}
      - {name: b, plugins: [{pluginRef: queue-scorer}]}
    dataLayer:
      sources: [{pluginRef: event-source, collectors: [{pluginRef: any-collector}]}]
    """


def built_plan(body: str = BODY) -> tuple[Plan, dict]:
    made = plan(body).plan
    built = build_plan(made, lambda _: PluginContext())
    assert isinstance(built, dict)
    return made, built


def test_profiles_are_compiled_with_their_steps_and_weights() -> None:
    made, built = built_plan()

    profiles = compile_profiles(made, built, NullTelemetry())

    assert list(profiles) == ["a", "b"]
    assert [step.instance.name for step in profiles["a"].filters] == ["even-filter"]
    assert [step.instance.name for step in profiles["a"].scorers] == ["match-scorer", "queue-scorer"]
    assert profiles["a"].weights == (2.0, 3.0)
    assert profiles["b"].picker.instance.name == "max-score-picker"


def test_the_pipeline_holds_every_group_in_the_plans_order() -> None:
    made, built = built_plan()

    pipeline = compile_plan(made, built, NullTelemetry())

    assert list(pipeline.scheduler.profiles) == ["a", "b"]
    assert pipeline.detector is not None
    assert len(pipeline.producers) == len(made.on_request[DataProducer]) == 2
    assert [step.instance.name for step in pipeline.admitters] == ["doorman"]
    assert len(pipeline.observers.breakers) == 1


def test_only_what_an_instance_reads_is_collected() -> None:
    made, built = built_plan()
    idle, idle_built = built_plan("plugins: [{type: plain-scorer}]")

    bindings = compile_collection(made, built).bindings

    assert [(one.source.name, [collector.name for collector in one.collectors]) for one in bindings] == [
        ("event-source", ["any-collector"]),
        ("metrics-data-source", ["core-metrics-extractor"]),
    ]
    assert compile_collection(idle, idle_built).bindings == ()


def test_the_table_gets_every_key_that_is_written_once() -> None:
    made, _ = built_plan()

    assert [key.name for key in declared_keys(made)] == ["zoo/match", "zoo/queue", "zoo/tokens"]
