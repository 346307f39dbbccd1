"""Data sources and collectors: what is bound to what."""

from __future__ import annotations

from endpick.host.planning.plan import PlannedSource
from unit.host.planning.planned import plan

METRICS = PlannedSource("metrics-data-source", ("core-metrics-extractor",), ("core-metrics-extractor",))


def test_metrics_are_collected_unless_the_document_forbids_it() -> None:
    assert plan("plugins: [{type: queue-scorer}]").plan.sources == (METRICS,)
    assert plan("plugins: [{type: plain-scorer}]\ndataLayer: {injectDefaults: false}").plan.sources == ()


def test_unread_metrics_are_not_collected() -> None:
    result = plan("plugins: [{type: plain-scorer}]")

    assert result.plan.sources == (PlannedSource("metrics-data-source", ("core-metrics-extractor",), ()),)
    assert result.found == []


def test_document_with_metrics_gets_no_second_source() -> None:
    """llm-d compares names here, and scrapes twice when the source has another name."""
    result = plan("""
        plugins: [{type: queue-scorer}, {type: metrics-data-source, name: mine}, {type: core-metrics-extractor, name: reader}]
        dataLayer: {sources: [{pluginRef: mine, collectors: [{pluginRef: reader}]}]}
        """)

    assert result.plan.sources == (PlannedSource("mine", ("reader",), ("reader",)),)
    assert result.announced("data source") == []


def test_defined_metrics_plugins_are_bound_by_default() -> None:
    result = plan("plugins: [{type: queue-scorer}, {type: core-metrics-extractor, name: reader}]")

    assert result.plan.sources == (PlannedSource("metrics-data-source", ("reader",), ("reader",)),)
    assert result.found == []


def test_unbound_collector_gets_its_default_source() -> None:
    result = plan("plugins: [{type: exotic-scorer}, {type: event-collector}]")

    assert PlannedSource("event-source", ("event-collector",), ("event-collector",)) in result.plan.sources
    assert result.announced("event-source") == ["added data source 'event-source': no source feeds collector 'event-collector'"]


def test_a_source_without_collectors_brings_its_own() -> None:
    result = plan("""
        plugins: [{type: exotic-scorer}, {type: event-source}]
        dataLayer: {sources: [{pluginRef: event-source}]}
        """)

    assert result.plan.sources[0] == PlannedSource("event-source", ("event-collector",), ("event-collector",))
    assert result.announced("event-collector")


def test_a_collector_that_writes_nothing_is_always_active() -> None:
    result = plan("""
        plugins: [{type: event-source}, {type: any-collector}]
        dataLayer: {sources: [{pluginRef: event-source, collectors: [{pluginRef: any-collector}]}]}
        """)

    assert result.plan.sources[0] == PlannedSource("event-source", ("any-collector",), ("any-collector",))


def test_behaviour_41_wrong_payload_names_the_collector() -> None:
    result = plan("""
        plugins: [{type: event-source}, {type: core-metrics-extractor}]
        dataLayer:
          sources:
            - pluginRef: event-source
              collectors:
                - pluginRef: core-metrics-extractor
        """)

    diagnostic = result.one("E0606")
    assert result.quote(diagnostic.span) == "core-metrics-extractor"
    assert diagnostic.span.line == 8
    assert diagnostic.message.startswith("collector 'core-metrics-extractor' reads unit.host.planning.zoo.Page")
    assert "delivers unit.host.planning.zoo.Event" in diagnostic.message
    assert [result.quote(label.span) for label in diagnostic.labels] == ["event-source"]


def test_an_unknown_source_is_told_apart_from_other_references() -> None:
    result = plan("""
        plugins: [{type: event-source}]
        dataLayer: {sources: [{pluginRef: evnt-source}]}
        """)

    assert result.found == [("E0607", "evnt-source")]
    assert result.one("E0607").help == "did you mean 'event-source'?"


def test_sources_and_collectors_cannot_swap_places() -> None:
    result = plan("""
        plugins: [{type: event-source}, {type: event-collector}]
        dataLayer: {sources: [{pluginRef: event-collector, collectors: [{pluginRef: event-source}]}]}
        """)

    assert [code for code, _ in result.found if code.startswith("E")] == ["E0503", "E0503"]
    assert "'event-collector' is a data collector; a data source is needed here" in result.outcome.diagnostics[-2].message


def test_a_collector_is_bound_once_however_often_it_is_named() -> None:
    result = plan("""
        plugins: [{type: event-source}, {type: any-collector}]
        dataLayer: {sources: [{pluginRef: event-source, collectors: [{pluginRef: any-collector}, {pluginRef: any-collector}]}]}
        """)

    assert result.plan.sources[0].collectors == ("any-collector",)


def test_missing_metrics_plugins_are_not_added() -> None:
    result = plan("plugins: [{type: plain-scorer}]", without=["core-metrics-extractor"])

    assert result.plan.sources == ()
    assert "metrics-data-source" not in result.plan.by_name


def test_untyped_payload_fits_any_source_and_collector() -> None:
    result = plan("""
        plugins: [{type: metrics-data-source}, {type: any-collector}]
        dataLayer: {sources: [{pluginRef: metrics-data-source, collectors: [{pluginRef: any-collector}]}]}
        """)

    assert result.found == []


def test_collector_gets_no_source_if_additions_are_forbidden() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}, {type: event-collector}]
        dataLayer: {injectDefaults: false}
        """)

    assert result.plan.sources == ()
    assert result.found == [("W0301", "event-collector"), ("W0602", "event-collector")]
