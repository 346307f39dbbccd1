"""Parameters that name other instances: looked up, built in order, called within bounds, carried over together."""

from __future__ import annotations

from textwrap import dedent
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from endpick.api import (
    ConfigurationError,
    DataKey,
    DisaggregationDecider,
    Parameters,
    PluginContext,
    ProfileHandler,
    RefersTo,
    SchedulingResult,
    Scorer,
)
from endpick.config import load_config
from endpick.engine.building import build_plan, carry_over, compile_plan
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick.host.telemetry import NullTelemetry
from endpick.testing.host import _offer, host_of
from unit.host.planning.planned import Result

UNDECLARED = DataKey("acme.example/undeclared", float)


class Yes(DisaggregationDecider):
    """Says yes."""

    def disaggregate(self, request, endpoint, state):
        state.private["asked"] = True
        return True


class Broken(DisaggregationDecider):
    """Raises."""

    def disaggregate(self, request, endpoint, state):
        raise RuntimeError("no idea")


class Vague(DisaggregationDecider):
    """Answers no bool."""

    def disaggregate(self, request, endpoint, state):
        return "perhaps"


class Peeking(DisaggregationDecider):
    """Reads what it did not declare."""

    def disaggregate(self, request, endpoint, state):
        return bool(endpoint[UNDECLARED][0] == 1)


class AllParameters(Parameters):
    deciders: Annotated[tuple[str, ...], RefersTo(DisaggregationDecider), Field(description="Whom to ask.")] = ()


class AllOf(DisaggregationDecider[AllParameters]):
    """Says yes when all others do."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.others = [context.instance(each, DisaggregationDecider) for each in parameters.deciders]

    def disaggregate(self, request, endpoint, state):
        return all(other.disaggregate(request, endpoint, state) for other in self.others)


class Stage(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decided_by: Annotated[str, RefersTo(DisaggregationDecider), Field(alias="decidedBy", description="Who decides.")]


class StagesParameters(Parameters):
    stages: Annotated[tuple[Stage, ...], Field(description="Stages.")] = ()
    by_name: Annotated[dict[str, Stage], Field(alias="byName", description="The same by name.", default_factory=dict)]
    last: Annotated[str, RefersTo(DisaggregationDecider), Field(description="Asked in the end.")] = ""


class StagesHandler(ProfileHandler[StagesParameters]):
    """Sets a header to what its decider says."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.decider = context.instance(parameters.last, DisaggregationDecider) if parameters.last else None

    def pick_profiles(self, request, profiles, results, state):
        return () if results else profiles

    def process_results(self, request, results, state):
        picked = results["default"].picked
        state.private["own"] = 1
        answer = self.decider.disaggregate(request, picked.take([0]), state) if self.decider else None
        assert state.private == {"own": 1}
        return SchedulingResult("default", results, (picked.members[0].address,), {"x-answer": str(answer)})


TYPES = {
    "acme.yes": Yes,
    "acme.broken": Broken,
    "acme.vague": Vague,
    "acme.peeking": Peeking,
    "acme.all-of": AllOf,
    "acme.stages": StagesHandler,
}


def plan(body: str) -> Result:
    text = f"apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n{dedent(body).lstrip()}"
    offered = [_offer(plugin_type, plugin) for plugin_type, plugin in TYPES.items()]
    return Result(make_plan(load_config(text=text, name="config.yaml"), (*discover(), *offered)), text)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("plugins: [{type: acme.yes}, {type: acme.stages, parameters: {last: acme.jes}}]", ("E0501", "acme.jes")),
        (
            "plugins: [{type: acme.yes}, {type: acme.stages, parameters: {last: queue-scorer}}, {type: queue-scorer}]",
            ("E0503", "queue-scorer"),
        ),
        ("plugins: [{type: acme.stages, parameters: {stages: [{decidedBy: nobody}]}}]", ("E0501", "nobody")),
        ("plugins: [{type: acme.stages, parameters: {byName: {a: {decidedBy: nobody}}}}]", ("E0501", "nobody")),
        ("plugins: [{type: acme.all-of, parameters: {deciders: [acme.all-of]}}, {type: acme.stages}]", ("E0520", "acme.all-of")),
        ("plugins: [{type: pd-profile-handler}]\nschedulingProfiles: [{name: decode}, {name: prefill}]", ("E0501", "pd-profile-handler")),
        (
            """
            plugins: [{type: disagg-profile-handler, parameters: {deciders: {prefill: acme.yes}}}, {type: acme.yes}]
            schedulingProfiles: [{name: decode}]
            """,
            ("W0520", "disagg-profile-handler"),
        ),
    ],
)
def test_a_mistake_is_marked_where_the_name_is_written(body, found) -> None:
    result = plan(body)

    assert found in result.found
    assert [one for one in result.found if one[0].startswith("E") and one != found] == []


def test_deprecated_parameter_is_inspected_without_warning() -> None:
    written = "plugins: [{type: token-producer, parameters: {modelName: m, vllm: {http: 'http://localhost:9'}}}]"

    assert [code for code, _ in plan(written).found if code.startswith("E")] == []


def test_a_misspelt_name_gets_a_suggestion() -> None:
    diagnostic = plan("plugins: [{type: acme.yes}, {type: acme.stages, parameters: {last: acme.jes}}]").one("E0501")

    assert diagnostic.help == "did you mean 'acme.yes'?"
    assert diagnostic.message == "'acme.jes' is not an instance defined under plugins"


def test_an_instance_of_another_kind_is_told_what_is_needed() -> None:
    diagnostic = plan("plugins: [{type: queue-scorer}, {type: acme.yes}, {type: acme.stages, parameters: {last: queue-scorer}}]").one(
        "E0503"
    )

    assert diagnostic.message == "'queue-scorer' is a scorer; a disaggregation decider is needed here"
    assert diagnostic.help == "of that kind are acme.yes"


def test_undefined_default_reference_names_the_parameter() -> None:
    diagnostic = plan("plugins: [{type: pd-profile-handler}]\nschedulingProfiles: [{name: decode}, {name: prefill}]").one("E0501")

    assert "needs a disaggregation decider called 'prefix-based-pd-decider'" in diagnostic.message
    assert "`deciderPluginName`" in (diagnostic.help or "")


def test_a_circle_marks_every_parameter_that_is_part_of_it() -> None:
    result = plan("""
        plugins:
          - {name: one, type: acme.all-of, parameters: {deciders: [two]}}
          - {name: two, type: acme.all-of, parameters: {deciders: [acme.yes, three]}}
          - {name: three, type: acme.all-of, parameters: {deciders: [one]}}
          - type: acme.yes
          - type: acme.stages
        """)

    diagnostic = result.one("E0520")
    assert diagnostic.message == "instances refer to each other in a circle: one → two → three → one"
    assert [result.quote(span) for span in (diagnostic.span, *(label.span for label in diagnostic.labels))] == ["two", "three", "one"]


def test_instances_are_built_after_those_they_name() -> None:
    result = plan("""
        plugins:
          - {type: acme.stages, parameters: {last: all}}
          - {name: all, type: acme.all-of, parameters: {deciders: [first, second]}}
          - {name: second, type: acme.yes}
          - {name: first, type: acme.yes}
        """)

    assert [one.name for one in result.plan.instances][:4] == ["first", "second", "all", "acme.stages"]
    assert result.plan.by_name["all"].refers_to == ("first", "second")
    assert isinstance(build_plan(result.plan, lambda _: PluginContext()), dict)


def test_a_decider_that_no_parameter_names_is_said_to_be_unused() -> None:
    assert plan("plugins: [{type: acme.yes}]").one("W0301").message == "'acme.yes' is not used: plugins[].parameters does not name it"


def answer_of(plugin_type: str, on_fault: str | None = None):
    """What a handler hears from a decider, and what the host has to say of it."""
    fault = f", onFault: {on_fault}" if on_fault else ""
    text = f"""
        apiVersion: endpick/v1alpha1
        kind: EndpointPickerConfig
        plugins:
        - {{type: acme.stages, parameters: {{last: decider}}}}
        - {{name: decider, type: {plugin_type}{fault}}}
    """
    with host_of(dedent(text), TYPES) as host:
        host.put(2)
        return host.ask()


def test_handler_calls_its_decider_and_keeps_its_scope() -> None:
    decision = answer_of("acme.yes")

    assert (decision.headers["x-answer"], decision.faults) == ("True", ())


@pytest.mark.parametrize(
    ("plugin_type", "problem"),
    [("acme.broken", "RuntimeError: no idea"), ("acme.vague", "answered str, not a bool")],
)
def test_failing_decider_answers_no_and_owns_the_fault(plugin_type, problem) -> None:
    decision = answer_of(plugin_type)

    assert decision.headers["x-answer"] == "False"
    assert [(fault.instance, fault.extension_point, fault.problem) for fault in decision.faults] == [
        ("decider", "DisaggregationDecider", problem)
    ]


def test_failing_decider_can_refuse_the_request() -> None:
    decision = answer_of("acme.broken", "FailClose")

    assert (decision.destinations, decision.status) == ((), 500)
    assert "plugin 'decider' failed: RuntimeError: no idea" in decision.refusal
    assert [fault.instance for fault in decision.faults] == ["decider"]


def test_a_decider_is_confined_to_the_keys_that_it_declares() -> None:
    assert ("decider", "read") in [(fault.instance, fault.extension_point) for fault in answer_of("acme.peeking").faults]


def test_an_open_circuit_leaves_the_decider_out() -> None:
    text = """
        apiVersion: endpick/v1alpha1
        kind: EndpointPickerConfig
        plugins:
        - {type: acme.stages, parameters: {last: acme.broken}}
        - {type: acme.broken}
    """
    with host_of(dedent(text), TYPES) as host:
        host.put(1)
        decisions = [host.ask() for _ in range(200)]

    assert {decision.headers["x-answer"] for decision in decisions} == {"False"}
    assert decisions[0].faults
    assert not decisions[-1].faults


def test_instance_is_carried_over_with_those_it_names() -> None:
    def built_from(cap: int, before: tuple[object, dict] | None = None):
        result = plan(f"""
            plugins:
              - {{type: acme.stages, parameters: {{last: decider}}}}
              - {{name: decider, type: prefix-based-pd-decider, parameters: {{nonCachedTokens: {cap}}}}}
            """)
        built = build_plan(result.plan, lambda _: PluginContext(), carry_over(*before, result.plan) if before else None)
        assert isinstance(built, dict)
        compile_plan(result.plan, built, NullTelemetry())
        return result.plan, built

    first = built_from(16)
    same, other = built_from(16, first), built_from(17, first)

    names = ("decider", "acme.stages")
    assert all(same[1][name].plugin is first[1][name].plugin for name in names)
    assert not any(other[1][name].plugin is first[1][name].plugin for name in names)
    assert other[1]["acme.stages"].plugin.decider is other[1]["decider"].proxy


class IgnoredCancellation(DisaggregationDecider):
    """Refuses to be built."""

    def __init__(self, name, parameters, context):
        raise ConfigurationError("not today")

    def disaggregate(self, request, endpoint, state):
        return True


def test_instances_that_name_an_unbuildable_one_are_skipped() -> None:
    text = (
        "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: acme.stages, parameters: {last: s}}, {name: s, type: acme.s}]\n"
    )
    offered = [_offer("acme.stages", StagesHandler), _offer("acme.s", IgnoredCancellation)]
    outcome = make_plan(load_config(text=text, name="config.yaml"), (*discover(), *offered))
    assert outcome.plan is not None

    faults = build_plan(outcome.plan, lambda _: PluginContext())

    assert isinstance(faults, tuple)
    (fault,) = faults
    assert "not today" in fault.message


def test_instance_not_named_by_a_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'x' is not an instance"):
        PluginContext().instance("x", DisaggregationDecider)


class ScorerParameters(Parameters):
    scorer: Annotated[str, RefersTo(Scorer), Field(description="A scorer.")] = ""


class Mistaken(ProfileHandler[ScorerParameters]):
    """Refers to a scorer."""

    pick_profiles = StagesHandler.pick_profiles
    process_results = StagesHandler.process_results


def test_reference_to_an_uncallable_kind_is_malformed() -> None:
    text = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: acme.h}]\n"
    outcome = make_plan(load_config(text=text, name="config.yaml"), (*discover(), _offer("acme.h", Mistaken)))

    (fault,) = [one for one in outcome.diagnostics if one.code.name == "E0318"]
    assert "the parameter 'scorer'" in fault.message
    assert "is no kind whose instances other plugins call" in fault.message
