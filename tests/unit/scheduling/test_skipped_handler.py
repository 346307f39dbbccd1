"""A failed profile handler that may be skipped."""

from __future__ import annotations

import pytest

from endpick.api import InferenceRequest, ProfileHandler, Rejection, SchedulingResult
from endpick.api.access import Access
from endpick.api.state import CycleState
from endpick.host.kinds import OnFault
from endpick.scheduling.scheduler import compile_profile, compile_scheduler
from endpick_builtin.pickers import MaxScorePicker
from unit.scheduling.workbench import Recording, filter_of, instance, plugin_of, pool


def fail(*_arguments):
    raise LookupError("gone")


def all_once(request, profiles, results, state):
    return () if results else profiles


METHODS = {
    "picks nothing": {"pick_profiles": fail, "process_results": fail},
    "decides nothing": {"pick_profiles": all_once, "process_results": fail},
    "decides for none": {"pick_profiles": all_once, "process_results": lambda *_: SchedulingResult("other", {}, ("x:1",))},
}


def decided(methods, on_fault=OnFault.SKIP, profiles=("default",), filters=()):
    telemetry, access = Recording(), Access()
    handler = plugin_of(ProfileHandler, "odd", on_fault, **methods)
    compiled = {name: compile_profile(name, filters, (), instance(MaxScorePicker), telemetry) for name in profiles}
    scheduler = compile_scheduler(handler, compiled, telemetry)
    return scheduler.schedule(InferenceRequest(id="r"), pool().view(access), CycleState(access), access), telemetry


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_the_only_pick_serves_if_the_handler_is_skipped(methods):
    result, telemetry = decided(methods)
    assert isinstance(result, SchedulingResult)
    assert result.destinations == tuple(endpoint.address for endpoint in result.runs["default"].picked.members)
    assert {name for name, _, _ in telemetry.faults} == {"odd"}


def test_several_profiles_need_the_handler():
    result, _ = decided(METHODS["decides nothing"], profiles=("prefill", "decode"))
    assert result.status == 500


def test_no_pick_is_refused_with_429():
    result, _ = decided(METHODS["decides nothing"], filters=[filter_of(lambda endpoints: endpoints.take([]))])
    assert isinstance(result, Rejection)
    assert result.status == 429


def test_a_failed_handler_refuses_if_on_fault_refuses():
    result, _ = decided(METHODS["decides nothing"], OnFault.REFUSE)
    assert result.status == 500
