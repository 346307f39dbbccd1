"""The scheduler loop: profile names, decisions, and faults of the handler."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import Rejection, SchedulingResult, Scorer
from endpick.api.state import CycleState
from endpick.scheduling.scheduler import compile_profile, compile_scheduler
from endpick_builtin.handlers.profiles import SingleProfileHandler
from endpick_builtin.pickers import MaxScorePicker
from unit.scheduling.workbench import REQUEST, Recording, access, filter_of, handler_of, instance, names, plugin_of, pool


def profile(name, keep=None, telemetry=None):
    filters = [] if keep is None else [filter_of(keep, f"{name}-filter")]
    return compile_profile(name, filters, [], instance(MaxScorePicker), telemetry or Recording())


def schedule(handler, profiles, telemetry=None, table=None):
    scheduler = compile_scheduler(handler, {each.name: each for each in profiles}, telemetry or Recording())
    shared = access()
    return scheduler.schedule(REQUEST, (table or pool()).view(shared), CycleState(shared), shared)


def first_pick(results):
    name, run = next(iter(results.items()))
    return SchedulingResult(name, results, tuple(endpoint.address for endpoint in run.picked))


def test_profiles_run_until_the_handler_names_none():
    rounds = []

    def pick_profiles(profiles, results):
        rounds.append(sorted(results))
        return [name for name in profiles if name not in results and name != "c"][:1]

    result = schedule(handler_of(pick_profiles, first_pick), [profile("a"), profile("b"), profile("c")])

    assert rounds == [[], ["a"], ["a", "b"]]
    assert sorted(result.runs) == ["a", "b"]
    assert result.primary == "a"


def test_the_handler_is_not_called_when_all_profiles_ran():
    rounds = []

    def pick_profiles(profiles, results):
        rounds.append(sorted(results))
        return [name for name in profiles if name not in results][:1]

    result = schedule(handler_of(pick_profiles, first_pick), [profile("a"), profile("b")])

    assert rounds == [[], ["a"]]
    assert sorted(result.runs) == ["a", "b"]


def test_the_single_profile_handler_decides_for_the_pick():
    result = schedule(instance(SingleProfileHandler), [profile("default", lambda endpoints: endpoints.take([1]))])
    assert (result.primary, result.destinations) == ("default", ("10.0.0.2:8000",))


def test_no_candidates_are_refused_with_429():
    result = schedule(instance(SingleProfileHandler), [profile("default", lambda endpoints: endpoints.take([]))])
    assert result == Rejection(
        "failed to find target endpoint: failed to run scheduler profile 'default' (default: no endpoints available for the given request)",
        429,
        "rejected-saturated",
    )


def test_a_refusing_fault_is_500():
    result = schedule(instance(SingleProfileHandler), [profile("default", lambda endpoints: 1 / 0)])
    assert isinstance(result, Rejection)
    assert (result.status, result.reason) == (500, "")
    assert "default-filter" in result.message


def test_the_single_profile_handler_refuses_several_profiles():
    result = schedule(instance(SingleProfileHandler), [profile("a"), profile("b")])
    assert isinstance(result, Rejection)
    assert (result.status, result.reason) == (429, "")
    assert "intended to be used with a single profile" in result.message


def test_a_handler_that_names_no_profile_is_refused():
    result = schedule(handler_of(lambda profiles, results: (), first_pick), [profile("a")])
    assert result == Rejection("failed to find target endpoint: failed to run any scheduler profile for request r-1", 429)


BAD_HANDLERS = {
    "raises": lambda profiles, results: 1 / 0,
    "one that does not exist": lambda profiles, results: ["nope"],
    "the same twice": lambda profiles, results: ["a", "a"],
    "the same for ever": lambda profiles, results: ["a"],
    "nothing": lambda profiles, results: None,
    "no strings": lambda profiles, results: [["a"]],
}


@pytest.mark.parametrize("bad", BAD_HANDLERS.values(), ids=BAD_HANDLERS.keys())
def test_invalid_profile_names_are_a_fault(bad):
    telemetry = Recording()
    result = schedule(handler_of(bad, first_pick), [profile("a"), profile("b")], telemetry)

    assert isinstance(result, Rejection)
    assert result.status == 500
    assert [(name, point) for name, point, _ in telemetry.faults] == [("handler", "ProfilePicker")]


BAD_RESULTS = {
    "raises": lambda results: 1 / 0,
    "nothing": lambda results: None,
    "a profile that did not run": lambda results: SchedulingResult("nope", results, ("10.0.0.1:8000",)),
    "no destination": lambda results: SchedulingResult("a", results, ()),
    "a destination that is no address": lambda results: SchedulingResult("a", results, (results["a"].picked.members[0],)),
    "no run": lambda results: SchedulingResult("a", {}, ("10.0.0.1:8000",)),
    "a header that is none": lambda results: SchedulingResult("a", results, ("10.0.0.1:8000",), {"x-number": 1}),
}


@pytest.mark.parametrize("bad", BAD_RESULTS.values(), ids=BAD_RESULTS.keys())
def test_an_invalid_decision_is_a_fault(bad):
    telemetry = Recording()
    result = schedule(handler_of(lambda profiles, results: () if results else profiles, bad), [profile("a")], telemetry)

    assert isinstance(result, Rejection)
    assert result.status == 500
    assert [(name, point) for name, point, _ in telemetry.faults] == [("handler", "ProcessProfilesResults")]


def test_a_failed_shadow_profile_leaves_the_primary():
    handler = handler_of(
        lambda profiles, results: () if results else profiles,
        lambda results: SchedulingResult("live", results, tuple(endpoint.address for endpoint in results["live"].picked)),
    )
    result = schedule(handler, [profile("live"), profile("shadow", lambda endpoints: 1 / 0)])
    assert isinstance(result, SchedulingResult)
    assert result.runs["shadow"].fault
    assert names(result.runs["live"].picked)


def test_each_profile_run_has_its_own_scratch():
    seen = []

    def score(request, endpoints, state):
        seen.append((dict(state.private), dict(state.profile)))
        state.private["count"] = state.private.get("count", 0) + 1
        state.profile["mine"] = True
        return np.ones(len(endpoints))

    scorer = plugin_of(Scorer, "keeping", score=score)
    profiles = [compile_profile(name, [], [(scorer, 1.0)], instance(MaxScorePicker), Recording()) for name in ("a", "b")]
    schedule(handler_of(lambda names, results: () if results else names, first_pick), profiles)
    assert seen == [({}, {}), ({"count": 1}, {})]
