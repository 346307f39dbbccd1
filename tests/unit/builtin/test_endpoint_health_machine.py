"""The states of an endpoint, whatever happens, and the endpoints that get no requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from endpick.api.keys import HealthState
from endpick_builtin.health.machine import TRANSITIONS, Absence, Event, Machine, Times, left_out

TIMES = Times(base_seconds=30, max_seconds=100, interval_seconds=10)


class AnyHistory(RuleBasedStateMachine):
    """One endpoint to which anything may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machine = Machine(TIMES, self.now)
        self.ejected_at = 0.0
        self.open: set[object] = set()

    @rule(event=st.sampled_from(Event))
    def something_happens(self, event: Event) -> None:
        before = self.machine.state
        changed = self.machine.take(event, self.now, event.value)
        assert changed == (self.machine.since == self.now and self.machine.reason == event.value) or not changed
        if changed:
            assert TRANSITIONS[before, event] is self.machine.state
            self.ejected_at = self.now

    @rule(seconds=st.sampled_from([0.5, 9.9, 10.0, 30.0, 100.0, 1e6]))
    def time_passes(self, seconds: float) -> None:
        before, self.now = self.machine.state, self.now + seconds
        changed = self.machine.pass_time(self.now)
        assert changed == (self.machine.state is not before)
        assert not changed or (before, self.machine.state) == (HealthState.EJECTED, HealthState.PROBING)

    @rule()
    def a_request_is_sent(self) -> None:
        request, before = object(), self.machine.trial
        self.machine.claim(request)
        assert (self.machine.trial is request) == (self.machine.state is HealthState.PROBING and before is None)

    @precondition(lambda self: self.machine.trial is not None)
    @rule()
    def the_trial_ends_without_a_result(self) -> None:
        self.machine.release(object())
        assert self.machine.trial is not None
        self.machine.release(self.machine.trial)
        assert self.machine.trial is None

    @precondition(lambda self: self.machine.state is HealthState.EJECTED)
    @rule()
    def every_ejection_ends(self) -> None:
        if self.machine.is_asleep:
            assert not self.machine.pass_time(self.now + 1e9)
            assert self.machine.take(Event.RETURNED, self.now)
        else:
            assert self.machine.pass_time(self.now + TIMES.max_seconds)
        assert self.machine.state is HealthState.PROBING
        assert self.machine.take(Event.SUCCEEDED, self.now)
        assert self.machine.state is HealthState.HEALTHY

    @invariant()
    def an_ejection_is_bounded(self) -> None:
        assert 0 <= self.machine.ejections <= TIMES.max_ejections
        if self.machine.state is HealthState.EJECTED and not self.machine.is_asleep:
            assert 0 < self.machine.until - self.ejected_at <= TIMES.max_seconds

    @invariant()
    def only_a_probed_endpoint_has_a_trial(self) -> None:
        assert self.machine.trial is None or self.machine.state is HealthState.PROBING


TestAnyHistory = AnyHistory.TestCase


def ejections(machine: Machine, now: float, count: int) -> list[float]:
    lengths = []
    for _ in range(count):
        machine.take(Event.CONDEMNED, now)
        lengths.append(machine.until - now)
        now = machine.until
        machine.pass_time(now)
    return lengths


def test_ejection_time_grows_and_shrinks_again():
    machine = Machine(TIMES, 0.0)
    assert ejections(machine, 0.0, 5) == [30, 60, 90, 100, 100]
    machine.take(Event.SUCCEEDED, 500.0)
    for now in (509.9, 510.0, 519.9, 520.0, 530.0):
        machine.pass_time(now)
    assert machine.ejections == 4 - 3
    assert ejections(machine, 530.0, 1) == [60]


@pytest.mark.parametrize("event", [Event.SUSPECTED, Event.SUCCEEDED, Event.RETURNED, Event.EXPIRED, Event.RESTARTED])
def test_what_means_nothing_to_a_healthy_endpoint(event):
    machine = Machine(TIMES, 0.0)
    assert machine.take(event, 1.0) == (event is Event.SUSPECTED)


def test_sleep_prolongs_no_ejection():
    machine = Machine(TIMES, 0.0)
    machine.take(Event.FELL_ASLEEP, 1.0)
    assert (machine.until, machine.ejections, machine.is_asleep) == (math.inf, 0, True)
    assert not machine.take(Event.FELL_ASLEEP, 2.0)


ABSENCES = st.lists(
    st.builds(
        Absence,
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
        st.sampled_from([f"e{number}" for number in range(12)]),
        st.sampled_from(["", "prefill"]),
        st.booleans(),
    ),
    unique_by=lambda absence: absence.name,
)


@given(ABSENCES, st.integers(0, 9), st.sampled_from([0, 10, 50, 99, 100]))
def test_left_out_endpoints_never_exceed_the_share(absences, others, percent):
    sizes = {group: others + sum(absence.group == group for absence in absences) for group in ("", "prefill")}
    names = left_out(absences, sizes, percent)
    for group, size in sizes.items():
        members = [absence for absence in absences if absence.group == group]
        inferred = [absence for absence in members if not absence.is_certain]
        out = [absence for absence in inferred if absence.name in names]
        kept = [absence for absence in inferred if absence.name not in names]
        certain = {absence.name for absence in members if absence.is_certain}
        assert len(out) <= size * percent / 100
        assert certain <= names or len(certain) == size
        assert len(names & {absence.name for absence in members}) < max(size, 1)
        assert not out or not kept or min(out).severity >= max(kept).severity
