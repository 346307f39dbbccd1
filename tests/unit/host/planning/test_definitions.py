"""What an entry under `plugins` comes to."""

from __future__ import annotations

from endpick.api import PluginContext
from endpick.engine.building import build_plan, carry_over
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from unit.host.planning.planned import plan


def test_an_instance_is_called_as_its_type_unless_it_has_a_name() -> None:
    result = plan("plugins: [{type: plain-scorer}, {type: plain-scorer, name: other}]")

    assert [instance.name for instance in result.plan.instances][:2] == ["plain-scorer", "other"]
    assert [instance.path for instance in result.plan.instances][:2] == [("plugins", 0), ("plugins", 1)]


def test_two_instances_of_one_name_are_refused_with_both_places() -> None:
    result = plan("""
        plugins:
          - type: plain-scorer
          - type: even-filter
            name: plain-scorer
        """)

    assert result.found == [("E0502", "plain-scorer")]
    assert result.one("E0502").span.line == 6
    assert [(label.span.line, result.quote(label.span)) for label in result.one("E0502").labels] == [(4, "plain-scorer")]


def test_an_unknown_type_is_refused_at_its_value() -> None:
    result = plan("plugins: [{type: quue-scorer}]")

    assert result.found == [("E0301", "quue-scorer")]
    assert result.one("E0301").help == "did you mean 'queue-scorer'?"


def test_parameters_are_judged_by_their_schema() -> None:
    result = plan("""
        plugins:
          - type: queue-scorer
            parameters:
              cap: -1
              cup: 3
          - type: picky-scorer
        """)

    assert result.found == [("E0401", "-1"), ("E0402", "cup"), ("E0406", "picky-scorer")]


def test_defaults_of_parameters_reach_the_plan() -> None:
    result = plan("plugins: [{type: queue-scorer}]")

    assert result.plan.by_name["queue-scorer"].parameters.cap == 128


def test_a_plugin_that_cannot_say_which_data_it_uses_is_blamed() -> None:
    result = plan("plugins: [{type: confused-scorer}]")

    assert [code for code, _ in result.found] == ["E0403"]
    assert "no idea" in result.one("E0403").message
    assert result.one("E0403").plugin.distribution == "zoo"


def test_on_fault_follows_the_document_or_else_the_kind() -> None:
    result = plan("""
        plugins:
          - {type: plain-scorer}
          - {type: queue-scorer, onFault: FailClose}
          - {type: even-filter, onFault: FailOpen}
          - {name: strict, type: even-filter}
        """)

    assert [result.plan.by_name[name].on_fault for name in ("plain-scorer", "queue-scorer", "even-filter", "strict")] == [
        OnFault.SKIP,
        OnFault.REFUSE,
        OnFault.SKIP,
        OnFault.REFUSE,
    ]


def test_a_denied_type_is_refused() -> None:
    result = plan("""
        plugins: [{type: plain-scorer}]
        pluginPolicy: {denyTypes: [plain-scorer]}
        """)

    assert result.found == [("E0307", "plain-scorer")]


def test_built_instances_come_in_the_order_of_the_plan() -> None:
    result = plan("plugins: [{type: plain-scorer}, {type: even-filter}]")

    built = build_plan(result.plan, lambda _: PluginContext())

    assert isinstance(built, dict)
    assert list(built) == [instance.name for instance in result.plan.instances]
    assert all(isinstance(instance, Instance) for instance in built.values())
    assert built["even-filter"].on_fault is OnFault.REFUSE


def test_unchanged_instances_are_carried_over() -> None:
    old = plan("plugins: [{type: plain-scorer}, {type: queue-scorer}, {type: even-filter, name: gone}]").plan
    new = plan("""
        plugins:
          - {type: queue-scorer, parameters: {cap: 7}}
          - {type: plain-scorer, onFault: FailClose}
          - {type: plain-scorer, name: gone}
        """).plan
    built = build_plan(old, lambda _: PluginContext())
    assert isinstance(built, dict)

    rebuilt = build_plan(new, lambda _: PluginContext(), carry_over(old, built, new))

    assert isinstance(rebuilt, dict)
    same = {name for name in rebuilt if name in built and rebuilt[name].plugin is built[name].plugin}
    assert "plain-scorer" in same
    assert "max-score-picker" in same
    assert not same & {"queue-scorer", "gone"}
    assert rebuilt["plain-scorer"].on_fault is OnFault.REFUSE
    assert built["plain-scorer"].on_fault is OnFault.SKIP
    assert list(rebuilt) == [instance.name for instance in new.instances]


def test_every_plugin_that_refuses_to_be_built_is_reported() -> None:
    result = plan("""
        plugins:
          - {type: stubborn-scorer}
          - {type: stubborn-scorer, name: again, parameters: {}}
        """)

    faults = build_plan(result.plan, lambda _: PluginContext())

    assert not isinstance(faults, dict)
    assert [(fault.code.name, fault.span.line) for fault in faults] == [("E0403", 4), ("E0403", 5)]
    assert "not on a Monday" in faults[0].message
    assert result.quote(faults[1].span) == "parameters"


def test_unreadable_parameters_are_not_missing() -> None:
    assert plan("plugins: [{type: picky-scorer, parameters: 7}]").found == [("E0203", "7")]


def test_unreadable_parameter_hides_no_other_mistake() -> None:
    result = plan("""
        plugins:
          - type: picky-scorer
            parameters:
              model: !secret x
              modle: y
        """)

    assert [code for code, _ in result.found] == ["E0103", "E0402"]
