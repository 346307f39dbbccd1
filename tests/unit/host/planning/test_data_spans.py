"""Where a plan points when instances disagree about data: at the consumer, or at one of two producers."""

from __future__ import annotations

import pytest

from unit.host.planning.planned import plan

PROFILE = "schedulingProfiles: [{{name: default, plugins: [{{pluginRef: {scorer}}}]}}]"


@pytest.mark.parametrize(
    ("plugins", "found", "label"),
    [
        ("[{type: hasty-scorer}, {type: memoir}]", ("E0604", "hasty-scorer"), "memoir"),
        ("[{type: wide-scorer}, {type: core-metrics-extractor}]", ("E0608", "wide-scorer"), "core-metrics-extractor"),
        (
            "[{type: plain-scorer}, {type: core-metrics-extractor, name: a}, {type: core-metrics-extractor, name: b}]",
            ("E0605", "core-metrics-extractor"),
            "core-metrics-extractor",
        ),
    ],
)
def test_disagreement_has_a_label_at_the_other_side(plugins, found, label):
    scorer = plugins.partition("type: ")[2].partition("}")[0]
    result = plan(f"plugins: {plugins}\n{PROFILE.format(scorer=scorer)}")

    assert [(code, text) for code, text in result.found if code[0] == "E"] == [found]
    diagnostic = result.one(found[0])
    assert diagnostic.span is not None
    assert [result.quote(each.span) for each in diagnostic.labels] == [label]


def test_second_producer_by_name_is_blamed():
    result = plan("plugins:\n- {type: plain-scorer}\n- {type: core-metrics-extractor, name: b}\n- {type: core-metrics-extractor, name: a}")

    clash = result.one("E0605")
    assert [clash.span.line, clash.labels[0].span.line] == [5, 6]


def test_a_malformed_key_is_shown_at_the_plugin_that_declares_it():
    result = plan("plugins: [{type: plain-scorer}, {type: shouting-producer}]")

    assert [one for one in result.found if one[0] == "E0609"] == [("E0609", "shouting-producer")]
