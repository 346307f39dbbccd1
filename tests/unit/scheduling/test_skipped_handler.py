"""A profile handler that may be skipped, and fails: the only profile's pick serves, and of several none does."""

from __future__ import annotations

import pytest

from endpick.api import InferenceRequest, ProfileHandler, Rejection, SchedulingResult
from endpick.api.access import Access
from endpick.api.state import CycleState
from endpick.host.kinds import OnFault
from endpick.scheduling.profile import compile_profile
from endpick.scheduling.scheduler import compile_scheduler
from endpick_builtin.pickers import MaxScorePicker
from unit.scheduling.workbench import Recording, filter_of, instance, plugin_of, pool


def fail(*_arguments):
    raise LookupError("gone")


def endless(*_arguments):
    """Small, and gigabytes of text."""
    inner: list[object] = []
    for _ in range(60):
        inner = [inner, inner]
    return inner


def all_once(request, profiles, results, state):
    return () if results else profiles


METHODS = {
    "picks nothing": {"pick_profiles": fail, "process_results": fail},
    "names what is none": {"pick_profiles": endless, "process_results": fail},
    "decides nothing": {"pick_profiles": all_once, "process_results": fail},
    "decides nonsense": {"pick_profiles": all_once, "process_results": endless},
    "decides for none": {"pick_profiles": all_once, "process_results": lambda *_: SchedulingResult("other", {}, ("x:1",))},
}


def decided(methods, on_fault=OnFault.SKIP, profiles=("default",), filters=()):
    telemetry, access = Recording(), Access()
    handler = plugin_of(ProfileHandler, "odd", on_fault, **methods)
    compiled = {name: compile_profile(name, filters, (), instance(MaxScorePicker), telemetry) for name in profiles}
    scheduler = compile_scheduler(handler, compiled, telemetry)
    return scheduler.schedule(InferenceRequest(id="r"), pool().view(access), CycleState(access), access), telemetry


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_the_only_pick_serves_where_a_handler_that_may_be_skipped_fails(methods):
    result, telemetry = decided(methods)
    assert isinstance(result, SchedulingResult)
    assert result.destinations == tuple(endpoint.address for endpoint in result.runs["default"].picked.members)
    assert {name for name, _, _ in telemetry.faults} == {"odd"}


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_of_several_profiles_none_serves_without_the_handler(methods):
    result, _ = decided(methods, profiles=("prefill", "decode"))
    assert isinstance(result, Rejection)
    assert result.status == 500


def test_without_a_pick_the_request_is_refused_for_that():
    result, _ = decided(METHODS["decides nothing"], filters=[filter_of(lambda endpoints: endpoints.take([]))])
    assert isinstance(result, Rejection)
    assert result.status == 429


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_a_handler_that_may_not_be_skipped_refuses(methods):
    result, _ = decided(methods, OnFault.REFUSE)
    assert isinstance(result, Rejection)
    assert result.status == 500
