"""What a profile handler answers that only looks like profiles to run, or like a decision."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from endpick.api import SchedulingResult
from endpick.api.state import CycleState
from endpick.scheduling.profile import compile_profile
from endpick.scheduling.scheduler import compile_scheduler
from endpick_builtin.pickers import MaxScorePicker
from unit.oddities import OddText, half, odd, sly, spoilt
from unit.scheduling.workbench import REQUEST, Recording, access, handler_of, instance, pool


class Endless(Sequence):
    """Names a profile for ever."""

    def __getitem__(self, index):
        return "default"

    def __len__(self):
        return 1


class TwoFaced(str):
    """Another text each time it is looked up."""

    looks = 0

    def __hash__(self):
        TwoFaced.looks += 1
        return hash("default") if TwoFaced.looks % 2 else 7

    def __eq__(self, other):
        return True


def scheduled(pick_profiles, process_results):
    """What a handler with these methods comes to, and the faults."""
    telemetry = Recording()
    profile = compile_profile("default", [], [], instance(MaxScorePicker), telemetry)
    scheduler = compile_scheduler(handler_of(pick_profiles, process_results, "bad"), {"default": profile}, telemetry)
    asked = access()
    return scheduler.schedule(REQUEST, pool().view(asked), CycleState(asked), asked), telemetry.faults


def once(profiles, results):
    return () if results else profiles


def decide(results):
    return SchedulingResult("default", results, tuple(each.address for each in results["default"].picked.members))


@pytest.mark.parametrize("names", [Endless(), ["default", "default"], [OddText("default")], [5], "default"])
def test_names_of_profiles_that_are_none_are_a_fault_of_the_handler(names):
    result, faults = scheduled(lambda *_: names, decide)

    if faults:
        assert (result.status, [name for name, *_ in faults]) == (500, ["bad"])
    else:
        assert result.destinations == ("10.0.0.1:8000",), "an odd text is read as a plain one"


def test_a_name_is_looked_up_as_what_it_says():
    result, faults = scheduled(lambda profiles, results: () if results else [TwoFaced("default")], decide)

    assert result.primary == "default"
    assert faults == []


def test_a_handler_cannot_take_back_the_runs_that_it_is_shown():
    def forgetful(profiles, results):
        results.clear()
        return profiles

    result, faults = scheduled(forgetful, decide)

    assert result.status == 500
    assert [name for name, *_ in faults] == ["bad"]


RESULTS = {
    "half": lambda _: half(SchedulingResult),
    "sly": lambda _: sly(SchedulingResult, "primary", "failure", "runs"),
    "sly at the end": lambda _: sly(SchedulingResult, "headers"),
    "spoilt headers": lambda results: spoilt(decide(results), headers=None),
    "spoilt destinations": lambda results: spoilt(decide(results), destinations=(5,)),
    "spoilt primary": lambda results: spoilt(decide(results), primary=[]),
    "a header with a line end": lambda results: SchedulingResult("default", results, ("a:1",), {"x-a": "b\r\nc: d"}),
    "of no run": lambda _: SchedulingResult("default", {}, ("a:1",)),
}


@pytest.mark.parametrize("answer", RESULTS)
def test_a_decision_that_is_none_is_a_fault_of_the_handler(answer):
    result, faults = scheduled(once, RESULTS[answer])

    assert result.status == 500
    assert [name for name, *_ in faults] == ["bad"]


def test_a_decision_of_odd_texts_is_read_as_plain_ones():
    class Plain(str):
        """Compares as it likes."""

        __eq__ = odd
        __hash__ = str.__hash__

    def process(results):
        return SchedulingResult("default", dict(results), (Plain("a:1"),), {Plain("x-a"): Plain("v")}, removed_headers=(Plain("x-b"),))

    result, faults = scheduled(once, process)

    assert faults == []
    texts = (*result.destinations, *result.headers, *result.headers.values(), *result.removed_headers)
    assert {type(text) for text in texts} == {str}
