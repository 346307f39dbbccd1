"""Scheduling profiles: what is filled in as llm-d does, and what is refused."""

from __future__ import annotations

import pytest

from endpick.api import Admitter
from endpick.host.planning.plan import WeightedScorer
from unit.host.planning.planned import plan


def test_a_profile_keeps_the_order_of_the_document() -> None:
    result = plan("""
        plugins:
          - type: even-filter
          - type: plain-scorer
          - type: queue-scorer
          - type: random-picker
          - {name: second, type: even-filter}
        schedulingProfiles:
          - name: default
            plugins:
              - pluginRef: queue-scorer
                weight: 2
              - pluginRef: second
              - pluginRef: random-picker
              - pluginRef: even-filter
              - pluginRef: plain-scorer
        """)

    (profile,) = result.plan.profiles
    assert profile.filters == ("second", "even-filter")
    assert profile.scorers == (WeightedScorer("queue-scorer", 2.0), WeightedScorer("plain-scorer", 1.0, weight_given=False))
    assert profile.picker == "random-picker"
    assert profile.instances == ("second", "even-filter", "queue-scorer", "plain-scorer", "random-picker")
    assert result.announced("weight") == ["weight 1 for 'plain-scorer' in profile 'default': none is given"]


def test_without_profiles_everything_that_can_takes_part_in_one() -> None:
    result = plan("plugins: [{type: even-filter}, {type: plain-scorer}, {type: doorman}, {type: random-picker}]")

    (profile,) = result.plan.profiles
    assert (profile.name, profile.filters, profile.picker) == ("default", ("even-filter",), "random-picker")
    assert [scorer.instance for scorer in profile.scorers] == ["plain-scorer"]
    assert "with even-filter, plain-scorer, random-picker" in result.announced("scheduling profile")[0]
    assert result.found == []


def test_an_empty_document_still_picks() -> None:
    result = plan("")

    assert result.plan.profiles[0].picker == "max-score-picker"
    assert result.plan.handler == "single-profile-handler"
    assert result.plan.by_name["max-score-picker"].path is None
    assert result.plan.by_name["max-score-picker"].reason == "scheduling profile 'default' names no picker"


def test_every_profile_without_picker_gets_the_same_default() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}, {type: every-profile-handler}]
        schedulingProfiles:
          - {name: prefill, plugins: [{pluginRef: plain-scorer}]}
          - {name: decode, plugins: [{pluginRef: plain-scorer}]}
        """)

    assert [profile.picker for profile in result.plan.profiles] == ["max-score-picker"] * 2
    assert len(result.announced("added picker")) == 2
    assert len(result.plan.by_name) == len(result.plan.instances)


def test_the_first_defined_picker_is_the_default_one() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}, {name: mine, type: random-picker}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: plain-scorer}]}]
        """)

    assert result.plan.profiles[0].picker == "mine"
    assert "max-score-picker" not in result.plan.by_name
    assert result.found == []


def test_a_defined_handler_is_used_and_none_is_added() -> None:
    result = plan("plugins: [{name: all, type: every-profile-handler}]")

    assert result.plan.handler == "all"
    assert result.announced("handler") == []


def test_two_pickers_in_a_profile_are_one_too_many() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}, {type: random-picker}]
        schedulingProfiles:
          - name: default
            plugins:
              - pluginRef: max-score-picker
              - pluginRef: random-picker
        """)

    assert result.found == [("E0505", "random-picker")]
    assert [result.quote(label.span) for label in result.one("E0505").labels] == ["max-score-picker"]


def test_two_pickers_without_profiles_are_one_too_many() -> None:
    result = plan("plugins: [{type: max-score-picker}, {type: random-picker}]")

    assert result.found == [("E0505", "random-picker")]
    assert "schedulingProfiles" in (result.one("E0505").help or "")


def test_several_profiles_need_a_handler_that_chooses() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}]
        schedulingProfiles:
          - {name: a, plugins: [{pluginRef: max-score-picker}]}
          - {name: b, plugins: [{pluginRef: max-score-picker}]}
        """)

    assert result.found == [("E0506", "schedulingProfiles")]
    assert "(a, b)" in result.one("E0506").message


def test_two_handlers_are_one_too_many() -> None:
    result = plan("plugins: [{type: single-profile-handler}, {type: every-profile-handler}]")

    assert result.found == [("E0506", "every-profile-handler")]
    assert [result.quote(label.span) for label in result.one("E0506").labels] == ["single-profile-handler"]


def test_single_profile_handler_cannot_serve_several_profiles() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}, {type: single-profile-handler}]
        schedulingProfiles:
          - {name: a, plugins: [{pluginRef: max-score-picker}]}
          - {name: b, plugins: [{pluginRef: max-score-picker}]}
        """)

    assert result.found == [("E0507", "single-profile-handler")]
    assert [result.quote(label.span) for label in result.one("E0507").labels] == ["a", "b"]


def test_a_handler_says_how_many_profiles_it_can_choose_among() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}, {type: two-profile-handler}]
        schedulingProfiles:
          - {name: prefill, plugins: [{pluginRef: max-score-picker}]}
          - {name: decode, plugins: [{pluginRef: max-score-picker}]}
          - {name: third, plugins: [{pluginRef: max-score-picker}]}
        """)

    assert result.found == [("E0507", "two-profile-handler")]
    assert result.one("E0507").message == "'two-profile-handler' runs 2 scheduling profiles, and 3 are defined"


def test_a_handler_says_which_profiles_it_requires() -> None:
    profile = "{name: decode, plugins: [{pluginRef: max-score-picker}]}"
    result = plan(f"plugins: [{{type: max-score-picker}}, {{type: two-profile-handler}}]\nschedulingProfiles: [{profile}]")

    assert result.found == [("E0509", "two-profile-handler")]
    assert result.one("E0509").message == "'two-profile-handler' requires scheduling profile 'prefill', which is not defined"
    assert not plan(
        f"plugins: [{{type: max-score-picker}}, {{type: two-profile-handler}}]\n"
        f"schedulingProfiles: [{profile}, {profile.replace('decode', 'prefill')}]"
    ).found


def test_handler_that_fails_to_name_its_profiles_is_at_fault() -> None:
    result = plan("plugins: [{type: max-score-picker}, {type: forgetful-profile-handler}]")

    assert [code for code, _ in result.found] == ["E0403"]


def test_profile_names_are_unique() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}, {type: every-profile-handler}]
        schedulingProfiles:
          - {name: same, plugins: [{pluginRef: max-score-picker}]}
          - {name: same, plugins: [{pluginRef: max-score-picker}]}
        """)

    assert result.found == [("E0508", "same")]
    assert result.one("E0508").span.line == 6
    assert result.one("E0508").labels[0].span.line == 5


def test_an_instance_appears_once_in_a_profile() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}]
        schedulingProfiles:
          - name: default
            plugins:
              - {pluginRef: plain-scorer, weight: 1}
              - {pluginRef: plain-scorer, weight: 2}
        """)

    assert result.found == [("E0510", "plain-scorer")]
    assert result.one("E0510").span.line == 8


def test_behaviour_37_unknown_reference_gets_a_suggestion() -> None:
    result = plan("""
        plugins: [{type: queue-scorer}, {type: even-filter}]
        schedulingProfiles:
          - name: default
            plugins:
              - pluginRef: quue-scorer
              - pluginRef: even-filter
        """)

    assert result.found == [("E0501", "quue-scorer")]
    diagnostic = result.one("E0501")
    assert diagnostic.help == "did you mean 'queue-scorer'?"
    assert diagnostic.notes == ("defined are queue-scorer, even-filter",)


def test_behaviour_37_odd_reference_gets_the_defined_names() -> None:
    result = plan("""
        plugins: [{type: even-filter}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: zzz}, {pluginRef: even-filter}]}]
        """)

    assert "did you mean" not in (result.one("E0501").help or "")
    assert "defined are even-filter" in (result.one("E0501").help or "")


def test_behaviour_37_weight_on_a_picker_is_an_error() -> None:
    result = plan("""
        plugins: [{type: max-score-picker}]
        schedulingProfiles:
          - name: default
            plugins:
              - pluginRef: max-score-picker
                weight: 17
        """)

    assert result.found == [("E0504", "17")]
    assert "'max-score-picker' is a picker" in result.one("E0504").message


@pytest.mark.parametrize("version", ["llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"])
def test_weight_on_a_picker_is_a_warning_for_llm_d(version: str) -> None:
    result = plan(
        """
        plugins: [{type: max-score-picker}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: max-score-picker, weight: 17}]}]
        """,
        version=version,
    )

    assert ("W0501", "17") in result.found
    assert result.plan.profiles[0].picker == "max-score-picker"


def test_a_scorer_of_weight_zero_is_doubted() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: plain-scorer, weight: 0}]}]
        """)

    assert result.found == [("W0501", "0")]


def test_other_kinds_in_a_profile_get_a_warning() -> None:
    result = plan("""
        plugins: [{type: doorman}, {type: random-picker}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: doorman}, {pluginRef: random-picker}]}]
        """)

    assert result.found == [("W0502", "doorman")]
    assert result.plan.profiles[0].instances == ("random-picker",)
    assert result.plan.on_request[Admitter] == ("doorman",)


def test_missing_default_is_an_error_with_its_reason() -> None:
    result = plan("plugins: [{type: plain-scorer}]", without=["max-score-picker"])

    diagnostic = result.one("E0323")
    assert "max-score-picker" in diagnostic.message
    assert "names no picker" in diagnostic.notes[-1]


def test_unloadable_type_is_not_judged() -> None:
    """An unknown instance may be the missing picker, handler or producer: only what is certain is reported."""
    result = plan("""
        plugins: [{type: mystery}, {type: orphan-scorer}]
        schedulingProfiles:
          - {name: a, plugins: [{pluginRef: mystery, weight: 3}, {pluginRef: orphan-scorer}]}
          - {name: b, plugins: [{pluginRef: orphan-scorer}]}
        """)

    assert result.found == [("E0301", "mystery")]


def test_missing_picker_waits_for_unknown_instances() -> None:
    result = plan(
        """
        plugins: [{type: mystery}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: mystery}]}]
        """,
        without=["max-score-picker"],
    )

    assert result.found == [("E0301", "mystery")]


def test_an_instance_that_bears_a_defaults_name_is_left_alone() -> None:
    result = plan("plugins: [{type: plain-scorer, name: max-score-picker}, {type: even-filter, name: single-profile-handler}]")

    assert result.plan.by_name["max-score-picker"].type == "plain-scorer"
    assert result.plan.profiles[0].picker == "max-score-picker-default"
    assert result.plan.handler == "single-profile-handler-default"
