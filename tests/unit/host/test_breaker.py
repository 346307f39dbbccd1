"""When an instance is left out, and when it is called again."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.host.breaker import (
    LATE_CALLS,
    LONGEST_COOL_DOWN_SECONDS,
    PROOFS,
    QUIET_SECONDS,
    TRANSITIONS,
    Breaker,
    BreakerEvent,
    BreakerSettings,
    BreakerState,
)

SETTINGS = BreakerSettings(budget_seconds=0.05, faults=5, cool_down_seconds=4.0)


class Bench:
    """A breaker, its clock, and a caller that asks it as the boundaries around plugins do."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.breaker = Breaker(SETTINGS, lambda: self.now)

    @property
    def state(self) -> BreakerState:
        return self.breaker.state

    def call(self, *, fails: bool = False, seconds: float = 0.001, skipped: bool = True) -> bool:
        """Make a call if it is admitted."""
        if self.breaker.state and not self.breaker.admits():
            return False
        self.now += seconds
        if fails:
            self.breaker.failed(skipped)
        if seconds > self.breaker.budget_seconds:
            self.breaker.took(seconds)
        return True

    def trip(self) -> None:
        for _ in range(SETTINGS.faults):
            assert self.call(fails=True)
        assert self.state is BreakerState.OPEN


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_table_names_every_state_and_event():
    known = set(TRANSITIONS)
    assert {state for state, _ in known} == set(BreakerState)
    assert {event for _, event in known} == set(BreakerEvent)
    assert set(TRANSITIONS.values()) == set(BreakerState)
    assert all(TRANSITIONS.get(pair) is not pair[0] for pair in product(BreakerState, BreakerEvent))


def test_calls_that_go_well_count_for_nothing(bench):
    assert all(bench.call() for _ in range(100))
    assert bench.state is BreakerState.CLOSED


def test_an_instance_that_always_fails_is_left_out_after_so_many_faults(bench):
    for _ in range(SETTINGS.faults - 1):
        assert bench.call(fails=True)
        assert bench.state is BreakerState.SUSPECTED
    assert bench.call(fails=True)

    assert bench.state is BreakerState.OPEN
    assert bench.breaker.reason == "5 of 5 calls failed"
    assert bench.breaker.seconds_left == 4.0
    assert not bench.call()


def test_an_instance_that_fails_now_and_then_is_called_for_ever(bench):
    for _ in range(50):
        assert bench.call(fails=True)
        assert all(bench.call() for _ in range(3))
    assert bench.state is BreakerState.SUSPECTED


def test_one_whose_faults_refuse_requests_refuses_no_others_by_being_left_out(bench):
    assert all(bench.call(fails=True, skipped=False) for _ in range(100))
    assert bench.state is BreakerState.SUSPECTED


def test_a_quiet_time_is_a_new_beginning(bench):
    for _ in range(SETTINGS.faults - 1):
        bench.call(fails=True)
    bench.now += QUIET_SECONDS + 0.1
    assert bench.call()
    assert bench.state is BreakerState.CLOSED
    assert bench.call(fails=True)
    assert bench.state is BreakerState.SUSPECTED


@pytest.mark.parametrize("skipped", [True, False])
@pytest.mark.parametrize("seconds", [0.06, 1.0, 30.0])
def test_an_instance_that_holds_the_event_loop_is_left_out_whatever_its_faults_do(bench, seconds, skipped):
    for _ in range(LATE_CALLS):
        assert bench.call(seconds=seconds, skipped=skipped)
        bench.now += seconds / 2
    assert bench.state is BreakerState.OPEN
    assert bench.breaker.reason.startswith("3 calls held the event loop for ")


def test_late_calls_that_take_little_of_the_time_are_borne(bench):
    for _ in range(50):
        assert bench.call(seconds=0.06)
        bench.now += 0.5
    assert bench.state is BreakerState.SUSPECTED


def test_after_the_cool_down_it_is_called_again_and_has_to_prove_itself(bench):
    bench.trip()
    bench.now += 3.9
    assert not bench.call()
    bench.now += 0.2
    assert bench.call()
    assert bench.state is BreakerState.HALF_OPEN
    assert bench.breaker.seconds_left == 0.0
    assert all(bench.call() for _ in range(PROOFS - 1))
    assert bench.state is BreakerState.HALF_OPEN
    assert bench.call()
    assert bench.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("mishap", "reason"), [({"fails": True}, "it failed again"), ({"seconds": 0.2}, "a call held the event loop for 0.2 s again")]
)
def test_each_relapse_doubles_the_time(bench, mishap, reason):
    bench.trip()
    cool_down = 4.0
    for _ in range(10):
        bench.now += bench.breaker.seconds_left
        assert bench.call(**mishap)
        assert bench.breaker.reason == reason
        cool_down = min(2 * cool_down, LONGEST_COOL_DOWN_SECONDS)
        assert bench.breaker.seconds_left == pytest.approx(cool_down)
    assert cool_down == LONGEST_COOL_DOWN_SECONDS


def test_a_recovery_makes_the_next_time_short_again(bench):
    bench.trip()
    bench.now += 4.0
    bench.call(fails=True)
    bench.now += 8.0
    assert all(bench.call() for _ in range(PROOFS + 1))
    assert bench.state is BreakerState.CLOSED
    bench.trip()
    assert bench.breaker.seconds_left == 4.0


def test_what_ends_late_changes_nothing_while_it_is_left_out(bench):
    bench.trip()
    left = bench.breaker.seconds_left
    bench.breaker.failed(skipped=True)
    bench.breaker.took(0.0)
    assert bench.breaker.seconds_left == left
    assert bench.state is BreakerState.OPEN


steps = st.tuples(st.booleans(), st.sampled_from([0.001, 0.06, 2.0]), st.booleans(), st.floats(0, 20))


@given(st.lists(steps, max_size=120))
def test_no_history_keeps_an_instance_out_for_longer_than_the_longest_time(history):
    bench = Bench()
    for fails, seconds, skipped, pause in history:
        before = bench.state
        called = bench.call(fails=fails, seconds=seconds, skipped=skipped)
        assert called or before is BreakerState.OPEN
        assert bench.breaker.seconds_left <= LONGEST_COOL_DOWN_SECONDS
        bench.now += pause
    bench.now += LONGEST_COOL_DOWN_SECONDS
    assert bench.call()
