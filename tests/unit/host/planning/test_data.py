"""Data needs of a plan: default producers, the words for what is missing, and what no instance uses."""

from __future__ import annotations

from endpick.api import DataProducer, Scope
from endpick.host.planning.plan import PlannedSource
from endpick.host.planning.subscriptions import Subscription
from unit.host.planning.planned import plan


def test_behaviour_42_default_producers_are_added_and_announced() -> None:
    result = plan("plugins: [{type: match-scorer}]")

    assert result.plan.on_request[DataProducer] == ("tokenizer", "matcher")
    assert [one.message for one in result.plan.announcements if one.code.name == "N0601"] == [
        "added producer 'matcher': 'match-scorer' needs 'zoo/match' and nothing else produces it",
        "added producer 'tokenizer': 'matcher' needs 'zoo/tokens' and nothing else produces it",
    ]
    assert result.plan.by_name["tokenizer"].reason == "'matcher' needs 'zoo/tokens' and nothing else produces it"
    assert Subscription("match-scorer", "zoo/match", "matcher", required=True, scope=Scope.CANDIDATE) in result.plan.graph.subscriptions


def test_a_defined_producer_is_used_whatever_its_name() -> None:
    result = plan("plugins: [{type: match-scorer}, {type: matcher, name: mine}]")

    assert result.plan.on_request[DataProducer] == ("tokenizer", "mine")


def test_an_added_collector_is_fed_by_a_source_that_is_there() -> None:
    result = plan("""
        plugins: [{type: queue-scorer}, {type: metrics-data-source, name: mine}, {type: any-collector}]
        dataLayer: {sources: [{pluginRef: mine, collectors: [{pluginRef: any-collector}]}]}
        """)

    assert result.plan.sources == (
        PlannedSource("mine", ("any-collector", "core-metrics-extractor"), ("any-collector", "core-metrics-extractor")),
    )
    assert result.announced("core-metrics-extractor") == [
        "added producer 'core-metrics-extractor': 'queue-scorer' needs 'zoo/queue' and nothing else produces it",
        "bound collector 'core-metrics-extractor' to data source 'mine': no source feeds collector 'core-metrics-extractor'",
    ]


def test_profiles_know_what_they_read() -> None:
    result = plan("""
        plugins: [{type: match-scorer}, {type: queue-scorer}, {type: every-profile-handler}]
        schedulingProfiles:
          - {name: a, plugins: [{pluginRef: match-scorer}]}
          - {name: b, plugins: [{pluginRef: queue-scorer}]}
        """)

    assert [profile.reads for profile in result.plan.profiles] == [("zoo/match", "zoo/tokens"), ("zoo/queue",)]


def test_behaviour_38_key_without_producer_gets_advice() -> None:
    result = plan("""
        plugins: [{type: exotic-scorer}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: exotic-scorer}]}]
        """)

    diagnostic = result.one("E0601")
    assert result.found == [("E0601", "exotic-scorer")]
    assert diagnostic.span.line == 4
    assert "'exotic-scorer'" in diagnostic.message
    assert "'zoo/exotic'" in diagnostic.message
    assert diagnostic.help == "add an instance of a type that produces it: event-collector"
    assert diagnostic.plugin.distribution == "zoo"


def test_a_key_that_no_installed_type_produces_says_so() -> None:
    result = plan("plugins: [{type: orphan-scorer}]")

    assert result.one("E0601").help == "no installed plugin type produces it; install one that does"


def test_a_default_producer_that_is_not_installed_is_named() -> None:
    result = plan("plugins: [{type: match-scorer}]", without=["matcher"])

    assert result.one("E0601").help == "install a plugin that offers 'matcher', its default producer"


def test_forbidden_collection_is_not_added() -> None:
    result = plan("plugins: [{type: queue-scorer}]\ndataLayer: {injectDefaults: false}")

    assert result.found == [("E0601", "queue-scorer")]
    assert "remove `injectDefaults: false`" in (result.one("E0601").help or "")


def test_request_producers_are_added_despite_inject_defaults() -> None:
    result = plan("plugins: [{type: match-scorer}]\ndataLayer: {injectDefaults: false}")

    assert result.plan.on_request[DataProducer] == ("tokenizer", "matcher")


def test_a_circle_is_reported_with_the_places_of_its_members() -> None:
    result = plan("plugins: [{type: matcher}, {type: tail-chaser}]")

    diagnostic = result.one("E0603")
    assert "matcher → tail-chaser → matcher" in diagnostic.message
    assert result.quote(diagnostic.span) == "matcher"
    assert [result.quote(label.span) for label in diagnostic.labels] == ["tail-chaser"]


def test_a_consumer_can_choose_its_producer_in_its_parameters() -> None:
    result = plan("""
        plugins:
          - {type: match-scorer, parameters: {producer: second}}
          - {type: matcher, name: first}
          - {type: matcher, name: second}
        """)

    assert [one.producer for one in result.plan.graph.subscriptions if one.consumer == "match-scorer"] == ["second"]
    assert result.found == [("W0602", "matcher")]


def test_chosen_producer_that_is_undefined_is_missed() -> None:
    result = plan("plugins: [{type: match-scorer, parameters: {producer: nobody}}]")

    assert [code for code, _ in result.found] == ["E0601"]
    assert "zoo/match@nobody" in result.one("E0601").message
    assert result.one("E0601").help == "'nobody' does not produce it; define 'nobody' under `plugins:`"


def test_wrong_chosen_producer_gets_a_suggestion() -> None:
    result = plan("plugins: [{type: match-scorer, parameters: {producer: mathcer}}, {type: matcher}]")

    assert result.one("E0601").help == "'mathcer' does not produce it; name one of matcher"


def test_wrong_parameters_do_not_invent_missing_data() -> None:
    """Which data `match-scorer` reads depends on its parameters, and those are wrong."""
    result = plan("plugins: [{type: match-scorer, parameters: {producer: 7}}]")

    assert result.found == [("E0401", "7")]


def test_a_producer_that_no_instance_reads_is_doubted() -> None:
    result = plan("plugins: [{type: tokenizer}]")

    assert result.found == [("W0602", "tokenizer")]
    assert "'zoo/tokens'" in result.one("W0602").message
    assert result.plan.on_request[DataProducer] == ("tokenizer",)


def test_an_optional_key_without_producer_is_mentioned() -> None:
    result = plan("plugins: [{type: spice-scorer}]")

    assert result.found == [("W0603", "spice-scorer")]


def test_unknown_instance_may_be_the_missing_producer() -> None:
    result = plan("plugins: [{type: spice-scorer}, {type: tokenizer}, {type: nowhere-scorer}]")

    assert result.found == [("E0301", "nowhere-scorer")]


def test_instance_named_like_a_default_producer_is_kept() -> None:
    result = plan("plugins: [{type: match-scorer}, {type: plain-scorer, name: matcher}]")

    assert result.plan.by_name["matcher"].type == "plain-scorer"
    assert result.plan.by_name["matcher-default"].type == "matcher"
    assert result.plan.on_request[DataProducer] == ("tokenizer", "matcher-default")


def test_default_producer_without_the_key_is_added_once() -> None:
    result = plan("plugins: [{type: trusting-scorer}]")

    assert result.found == [("E0601", "trusting-scorer")]
    assert result.one("E0601").help == "no installed plugin type produces it; install one that does"
