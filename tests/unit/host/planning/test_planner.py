"""The planner as a whole: every mistake in one run, in the order of the document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import DataProducer
from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick.config import load_config
from endpick.diagnostics import Code
from endpick.host.planning.planner import check_statically, make_plan
from unit.host.planning.planned import plan
from unit.host.planning.zoo import candidates

SEVEN = """
    plugins:
      - type: queue-scorer
        parameters:
          cupp: 3
      - type: nowhere-scorer
      - type: picky-scorer
      - type: max-score-picker
        nmae: picker
      - type: orphan-scorer
    schedulingProfiles:
      - name: default
        plugins:
          - pluginRef: quue-scorer
          - pluginRef: queue-scorer
          - pluginRef: picky-scorer
          - pluginRef: max-score-picker
            weight: 3
    requestHandler:
      parsers:
        - pluginRef: queue-scorer
    featureGates: [flowControll]
    """


def test_behaviour_33_mistakes_of_every_phase_are_found() -> None:
    result = plan(SEVEN)

    errors = [(code, text) for code, text in result.found if code.startswith("E")]
    assert errors == [
        ("E0402", "cupp"),
        ("E0301", "nowhere-scorer"),
        ("E0406", "picky-scorer"),
        ("E0201", "nmae"),
        ("E0501", "quue-scorer"),
        ("E0504", "3"),
        ("E0503", "queue-scorer"),
        ("E0208", "flowControll"),
    ]
    spans = [one.span for one in result.outcome.diagnostics]
    assert spans == sorted(spans)


def test_the_same_document_gives_the_same_plan_every_time() -> None:
    body = "plugins: [{type: match-scorer}, {type: queue-scorer}, {type: doorman}, {type: diary}]"
    first = plan(body).plan

    for _ in range(30):
        again = plan(body).plan
        assert again.graph == first.graph
        assert (again.on_request[DataProducer], again.profiles, again.sources, again.announcements) == (
            first.on_request[DataProducer],
            first.profiles,
            first.sources,
            first.announcements,
        )


def test_what_cannot_be_read_at_all_is_not_planned() -> None:
    loaded = load_config(text="a: [", name="config.yaml")

    outcome = make_plan(loaded, candidates())

    assert outcome.plan is None
    assert outcome.diagnostics == loaded.diagnostics
    assert check_statically(loaded, candidates()) == loaded.diagnostics


def test_parts_that_were_faulty_are_not_filled_in() -> None:
    """What the operator meant is unknown, so nothing is said about what takes its place."""
    result = plan("""
        plugins: [{type: plain-scorer}]
        requestHandler: {parsers: 7}
        dataLayer: 3
        schedulingProfiles: maybe
        """)

    assert [code for code, _ in result.found] == ["E0203", "E0203", "E0203"]


def test_a_faulty_entry_does_not_make_its_references_faulty() -> None:
    result = plan("""
        plugins:
          - {name: mine, type: [plain-scorer]}
        schedulingProfiles: [{name: default, plugins: [{pluginRef: mine}]}]
        """)

    assert [code for code, _ in result.found] == ["E0203"]


def test_unused_instances_are_doubted_with_the_place_they_lack() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}, {type: random-picker}, {type: csv-parser}, {type: file-discovery}, {type: event-source}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
        """)

    assert result.found == [
        ("W0301", "plain-scorer"),
        ("W0301", "csv-parser"),
        ("W0301", "file-discovery"),
        ("W0301", "event-source"),
    ]
    assert "schedulingProfiles[].plugins does not name it" in result.outcome.diagnostics[0].message


def test_policy_silences_unused_instances() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}, {type: random-picker}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
        pluginPolicy: {onUnused: Ignore}
        """)

    assert result.found == []


def test_instance_meant_by_a_misspelling_is_not_unused() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: plain-scorrer}]}]
        """)

    assert result.found == [("E0501", "plain-scorrer")]


def test_references_to_replicas_are_checked() -> None:
    result = plan("""
        plugins: [{type: event-source}]
        dataLayer:
          discovery: {peers: {pluginRef: nobody}}
          crossReplica: {syncerPluginRef: event-source}
        """)

    assert result.found == [("E0501", "nobody"), ("N0502", "nobody"), ("E0503", "event-source")]
    assert result.outcome.diagnostics[1].message == (
        "pickers reach each other through the state store, so 'dataLayer.discovery.peers.pluginRef' only counts them"
    )


@pytest.mark.parametrize("version", ["llm-d.ai/v1", "endpick/v1alpha1"])
def test_a_syncer_of_llm_d_need_not_be_installed(version: str) -> None:
    body = "plugins: [{{type: {}, name: store}}]\ndataLayer: {{crossReplica: {{syncerPluginRef: store}}}}"

    known, unknown = (plan(body.format(each), version=version) for each in ("redis-state-store", "redis-state-stores"))

    assert (known.found, known.outcome.plan is not None) == ([], True)
    assert known.plan.fleet is None
    assert unknown.found == [("E0301", "redis-state-stores")]


TYPES = sorted(one.type for one in candidates())


@given(st.lists(st.sampled_from(TYPES), unique=True, max_size=8), st.randoms(use_true_random=False))
def test_plan_is_complete_or_has_an_error_with_a_place(types: list[str], random) -> None:
    result = plan(f"plugins: [{', '.join(f'{{type: {one}}}' for one in types)}]")

    if result.outcome.plan is None:
        assert all(one.span is not None for one in result.outcome.diagnostics if one.is_error)
        return
    whole = result.plan
    named = {
        whole.handler,
        *whole.parsers,
        *(name for names in whole.on_request.values() for name in names),
        *(name for profile in whole.profiles for name in profile.instances),
        *(name for source in whole.sources for name in (source.instance, *source.collectors)),
    }
    assert named | {whole.detector} <= {*whole.by_name, None}
    assert set(types) <= set(whole.by_name)
    produced = {key.name for instance in whole.instances for key in instance.subscriptions.produces}
    assert {key.name for instance in whole.instances for key in instance.subscriptions.consumes} <= produced
    assert all(set(source.active) <= set(source.collectors) for source in whole.sources)
    shuffled = list(types)
    random.shuffle(shuffled)
    again = plan(f"plugins: [{', '.join(f'{{type: {one}}}' for one in shuffled)}]").plan
    assert (again.on_request[DataProducer], again.graph) == (whole.on_request[DataProducer], whole.graph)


def test_static_check_imports_no_third_party() -> None:
    """Everything in the zoo is third-party, so what its plugins are stays unknown."""
    text = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: plain-scorer, parameters: {x: 1}}, {type: nowhere-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: plain-scorrer}, {pluginRef: plain-scorer}]}]
"""
    found = check_statically(load_config(text=text, name="config.yaml"), candidates())

    assert [one.code for one in found] == [Code.E0301, Code.E0501]


def test_objectives_have_names_of_their_own() -> None:
    result = plan("objectives: [{name: batch, priority: -1}, {name: chat, priority: 5}, {name: batch, priority: 2}]")

    assert result.found == [("E0512", "batch")]
    assert [result.quote(label.span) for label in result.one("E0512").labels] == ["batch"]
    assert plan("objectives: [{name: batch, priority: -1}]").plan.objectives == {"batch": -1}


def test_models_have_names_of_their_own_and_become_rules() -> None:
    result = plan("models: [{name: m, targets: [{model: a}]}, {name: '*', targets: [{model: b}]}, {name: m, targets: [{model: c}]}]")

    assert result.found == [("E0513", "m")]
    assert [result.quote(label.span) for label in result.one("E0513").labels] == ["m"]
    text = "models: [{name: m, targets: [{model: a, weight: 3}, {model: b}]}, {name: '*', targets: [{model: c}]}, {name: itself}]"
    assert plan(text).plan.models == (
        ModelRewrite(("m",), (ModelTarget("a", 3), ModelTarget("b", 1))),
        ModelRewrite((), (ModelTarget("c", 1),)),
        ModelRewrite(("itself",), (ModelTarget("itself", 1),)),
    )
